"""Parses request bodies and checks what the router itself relies on. Engines judge everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Required

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from backends import bounded_json
from router.core.errors import Refusal, invalid_request
from router.request.validation import (
    LARGEST_INTEGER,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Check,
    List,
    Name,
    Object,
    Text,
    says,
    wrong,
)

#: Bodies up to this size are parsed at once.
SMALL_BYTES = bounded_json.SMALL_BYTES

_MAX_CHOICES = 128
_MAX_PROMPTS = 2048
_MAX_STOP_WORDS = 256
_MAX_LOGIT_BIAS = 4096


# --- parsing -----------------------------------------------------------------------------------------
def parse_json(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`, parsed at once: for bodies up to `SMALL_BYTES`. Raises a 400 Refusal."""
    try:
        return _object(bounded_json.loads(data))
    except ValueError as error:
        raise _unreadable(error) from None


async def parse_large_json(data: bytes) -> dict[str, Any]:
    """The same for a body of any size; the event loop runs between the steps."""
    try:
        return _object(await bounded_json.read(data))
    except ValueError as error:
        raise _unreadable(error) from None


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise invalid_request("The body must be a JSON object.")
    return body


def _unreadable(error: ValueError) -> Refusal:
    if isinstance(error, bounded_json.TooComplex):
        return invalid_request(f"The body {error}.")
    reason = str(error).split(":", 1)[0]
    if "infinity" in reason:
        return invalid_request("The body holds a number that is too large.")
    return invalid_request(f"The body is not valid JSON: {reason}.")


# --- the model of OpenAI's bodies --------------------------------------------------------------------
def _token_ids(ids: list[Any]) -> list[Any]:
    # By hand: there may be hundreds of thousands, and pydantic takes twice as long.
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0):
        raise wrong("must be token ids")
    return ids


def _given(prompt: Any) -> Any:
    if not prompt:
        raise wrong("must not be empty")
    return prompt


_Count = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]
_Choices = Annotated[int, Field(ge=1, le=_MAX_CHOICES)]
_Texts = Annotated[list[Text], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)]
_TokenIds = Annotated[List, AfterValidator(_token_ids)]
_SomeTokenIds = Annotated[_TokenIds, Field(min_length=1)]
_Prompts = Annotated[list[_TokenIds], Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)]
_Prompt = Annotated[
    Text | _Texts | _SomeTokenIds | _Prompts,
    Field(union_mode="left_to_right"),
    says(f"must be a string, a list of token ids, or a list of at most {_MAX_PROMPTS} of these"),
]
_Stop = Annotated[
    Text | Annotated[list[Text], Field(max_length=_MAX_STOP_WORDS)] | None,
    says(f"must be a string or a list of at most {_MAX_STOP_WORDS} strings"),
]
_Content = Annotated[
    Text | Annotated[list[Object], Field(fail_fast=True)] | None,
    says("must be a string or a list of objects"),
]


class ChatMessage(TypedDict, total=False):
    role: Required[Text]
    content: _Content


class _Body(TypedDict, total=False):
    """What all three APIs have. Null is not given."""

    stream: bool | None
    max_tokens: _Count | None
    max_completion_tokens: _Count | None
    n: _Choices | None
    best_of: _Choices | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    stop: _Stop
    stream_options: dict[str, bool | None] | None
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS)] | None
    response_format: Object | None
    logit_bias: Annotated[dict[str, Any], Field(max_length=_MAX_LOGIT_BIAS)] | None
    user: Name | None
    prompt_cache_key: Name | None
    echo: bool | None
    suffix: Text | None
    dimensions: _Count | None
    encoding_format: Name | None


class Chat(_Body, total=False):
    messages: Required[
        Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    ]


class Completion(_Body, total=False):
    prompt: Required[Annotated[_Prompt, AfterValidator(_given)]]
    max_tokens: Annotated[int, Field(ge=0, le=LARGEST_INTEGER)] | None  # 0 scores an echoed prompt


class Embedding(_Body, total=False):
    input: Required[_Prompt]


_NUMBERS, _FLAGS = frozenset((float, int)), frozenset((bool, type(None)))
#: Types that fields of the model may have without a look at the value.
_PLAIN: Mapping[str, frozenset[type]] = {
    "stream": frozenset((bool,)),
    "temperature": _NUMBERS,
    "top_p": _NUMBERS,
    "presence_penalty": _NUMBERS,
    "frequency_penalty": _NUMBERS,
    "seed": frozenset((int,)),
}
_CHECKED = frozenset(Chat.__annotations__)
_CHECKS = {"chat": Check(Chat), "completions": Check(Completion), "embeddings": Check(Embedding)}


def check(api: str, body: Mapping[str, Any]) -> list[str] | None:
    """Check an OpenAI-shaped body for `api` ("chat", "completions", "embeddings"). Raises a 400 Refusal.

    Returns the texts of a simple chat: its messages have a role and a text only, and its other fields are the model, numbers
    and flags. None for any other body."""
    if api == "chat":
        plain, texts = _plain_chat(body)
        if plain:
            return texts
    _CHECKS[api](body)
    if api == "completions" and body.get("max_tokens") == 0 and not body.get("echo"):
        raise invalid_request("max_tokens must be at least 1 without echo.", "max_tokens")
    if api == "chat":
        parts = 0
        for message in body["messages"]:
            if isinstance(content := message.get("content"), list):
                parts += len(content)
        if parts > MAX_PARTS:
            raise invalid_request(f"messages must have at most {MAX_PARTS} parts in all.", "messages")
    return None


def _plain_chat(body: Mapping[str, Any]) -> tuple[bool, list[str] | None]:
    """Whether a body is a chat of texts with usual fields only, which the model accepts, and its texts if it is a simple one.
    Most bodies are such chats, and the model takes five times as long."""
    messages = body.get("messages")
    if type(messages) is not list or not 0 < len(messages) <= MAX_MESSAGES:
        return False, None
    simple, texts = True, []
    for message in messages:
        if (
            type(message) is not dict
            or type(message.get("role")) is not str
            or type(text := message.get("content")) is not str
        ):
            return False, None
        texts.append(text)
        if len(message) != 2:
            simple = False
    for name, value in body.items():
        if name not in _CHECKED:
            simple = simple and name == "model"
        elif name == "max_tokens" or name == "max_completion_tokens":  # noqa: PLR1714 (half the time)
            if type(value) is not int or not 0 < value <= LARGEST_INTEGER:
                return False, None
        elif name == "stream_options":
            if type(value) is not dict or not _FLAGS.issuperset(map(type, value.values())):
                return False, None
            simple = False
        elif name != "messages" and type(value) not in _PLAIN.get(name, ()):
            return False, None
    return True, texts if simple else None


def output_cap(body: Mapping[str, Any]) -> int | None:
    """The client's bound on output tokens of each choice."""
    cap = body.get("max_completion_tokens")
    return cap if cap is not None else body.get("max_tokens")
