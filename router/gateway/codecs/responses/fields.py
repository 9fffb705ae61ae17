"""The models of the Responses API's request bodies.

Field names are those of https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field, GetPydanticSchema
from typing_extensions import TypedDict

from router.request.validation import (
    LARGEST_INTEGER,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Check,
    List,
    Object,
    Text,
    by_type,
    one_of,
    says,
)

_MAX_ENTRIES = 64  # of `include` and `metadata`
#: Features that need stored answers, or tools that the server runs.
UNSUPPORTED = {
    "previous_response_id": "nothing is stored here: send the whole conversation as input",
    "conversation": "nothing is stored here: send the whole conversation as input",
    "prompt": "no prompt templates are stored here: send instructions and input",
    "context_management": "conversations are not shortened here: send a shorter input",
}
#: Fields of a chat that have another name in this API.
OTHER_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
    "functions": "tools",
    "function_call": "tool_choice",
}
_SENTENCES = {name: f"is not supported: {why}" for name, why in UNSUPPORTED.items()} | {
    name: f"is not a field of this API: use {other}" for name, other in OTHER_NAMES.items()
}


# --- parts and items ---------------------------------------------------------------------------------
class TextPart(TypedDict):
    text: Text


class RefusalPart(TypedDict):
    refusal: Text


class ImagePart(TypedDict, total=False):
    file_id: Annotated[None, says("is not supported: no files are stored here, send image_url")]
    image_url: Required[Text]
    detail: Text | None


_Part = Annotated[
    Any,
    by_type(
        {
            "input_text": TextPart,
            "output_text": TextPart,
            "text": TextPart,
            "reasoning_text": TextPart,
            "summary_text": TextPart,
            "refusal": RefusalPart,
            "input_image": ImagePart,
        }
    ),
]
_Parts = Annotated[list[_Part], Field(max_length=MAX_PARTS, fail_fast=True)]


def _text_or_list(listed: Any, sentence: str) -> GetPydanticSchema:
    return one_of(
        {"text": Text, "list": listed},
        lambda value: "text" if isinstance(value, str) else "list" if isinstance(value, list) else None,
        sentence,
    )


_Content = Annotated[Any, _text_or_list(_Parts, "must be a string or a list of parts")]


class MessageItem(TypedDict):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content


class ReasoningItem(TypedDict, total=False):
    content: list[TextPart] | None
    summary: list[TextPart] | None


class FunctionCall(TypedDict):
    call_id: Text
    name: Text
    arguments: Text
    namespace: NotRequired[Text | None]


class FunctionCallOutput(TypedDict):
    call_id: Text
    output: _Content


class ItemReference(TypedDict):
    type: Annotated[
        None,
        says(
            "is not supported: no items are stored here: send the item itself (some clients need store: false)"
        ),
    ]


_Item = Annotated[
    Any,
    by_type(
        {
            "message": MessageItem,
            "reasoning": ReasoningItem,
            "function_call": FunctionCall,
            "function_call_output": FunctionCallOutput,
            "item_reference": ItemReference,
        },
        default="message",
    ),
]
_Items = Annotated[list[_Item], Field(max_length=MAX_MESSAGES, fail_fast=True)]
_Input = Annotated[Any, _text_or_list(_Items, "must be a string or a list of items")]


# --- formats -----------------------------------------------------------------------------------------
class PlainFormat(TypedDict):
    """Text, or JSON of any shape."""

    type: Literal["text", "json_object"]


class JsonSchema(TypedDict, total=False):
    name: Required[Text]
    schema: Required[Object]
    description: Any
    strict: Any


_Format = Annotated[
    Any, by_type({"text": PlainFormat, "json_object": PlainFormat, "json_schema": JsonSchema})
]


# --- the body ----------------------------------------------------------------------------------------
_FunctionType = Annotated[Literal["function"], says("must be function: other tools are not supported here")]


class FunctionTool(TypedDict, total=False):
    """A tool."""

    type: Required[_FunctionType]
    name: Required[Text]
    parameters: Object | None
    description: Text | None
    strict: Any


class Namespace(TypedDict):
    """Tools under one name, for `NAMESPACE_TOOLS`."""

    type: Literal["namespace"]
    name: Text
    tools: List


def _kind_of_tool(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return None
    kind = tool.get("type")
    if kind == "namespace":
        return "namespace"
    return "other" if isinstance(kind, str) and kind != "function" else "function"


_TOOL_KINDS = {"function": FunctionTool, "namespace": Namespace, "other": Object}
_Tools = Annotated[
    list[Annotated[Any, one_of(_TOOL_KINDS, _kind_of_tool, "must be an object")]],
    Field(max_length=MAX_TOOLS, fail_fast=True),
]


class ToolChoice(TypedDict, total=False):
    type: Required[_FunctionType]
    name: Required[Text]


class AllowedTools(TypedDict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class TextOptions(TypedDict, total=False):
    format: _Format | None
    verbosity: Text | None


class Reasoning(TypedDict, total=False):
    effort: Text | None


class ResponseBody(TypedDict, total=False):
    """A request. Null is not given. Fields that only chats have (`seed`, `top_k`) pass to the engine unchecked."""

    input: _Input | None
    instructions: Text | None
    stream: bool | None
    store: bool | None
    background: Annotated[Literal[False] | None, says("must be false: nothing is stored here")]
    max_output_tokens: Annotated[int, Field(ge=1, le=LARGEST_INTEGER)] | None
    max_tool_calls: Annotated[int, Field(ge=0, le=LARGEST_INTEGER)] | None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None
    n: Annotated[Literal[1] | None, says("is not a field of this API: a response is one answer")]
    parallel_tool_calls: bool | None
    temperature: float | None
    top_p: float | None
    metadata: Annotated[
        Annotated[dict[str, Text], Field(max_length=_MAX_ENTRIES, fail_fast=True)] | None,
        says(f"must be an object of at most {_MAX_ENTRIES} strings"),
    ]
    text: TextOptions | None
    reasoning: Reasoning | None
    stream_options: Object | None
    tools: _Tools | None
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | Object | None,
        says("must be auto, none, required, a function or allowed_tools"),
    ]
    include: Annotated[list[Text], Field(max_length=_MAX_ENTRIES, fail_fast=True)] | None
    truncation: Literal["auto", "disabled"] | None
    client_metadata: Any
    user: Text | None
    safety_identifier: Text | None
    prompt_cache_key: Text | None
    service_tier: Text | None


BODY = Check(ResponseBody)
NAMESPACE_TOOLS = Check(_Tools)
TOOL_CHOICE, ALLOWED_TOOLS = Check(ToolChoice), Check(AllowedTools)
#: Refuses the fields of `_SENTENCES`.
NO_OTHER_FIELDS = Check(
    TypedDict(  # type: ignore[operator]  # made of a table
        "NoOtherFields",
        {name: Annotated[None, says(sentence)] for name, sentence in _SENTENCES.items()},
        total=False,
    )
)
