"""The models of Ollama's request bodies. Fields that have no meaning here are not looked at."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Required

from pydantic import AfterValidator, Field, WithJsonSchema
from typing_extensions import TypedDict

from router.request.validation import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Check,
    List,
    Object,
    Text,
    says,
    wrong,
)

# --- keep_alive --------------------------------------------------------------------------------------
_MAX_DURATION_CHARS = 200
#: With possessive quantifiers: there is no backtracking.
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:ns|us|µs|μs|ms|s|m|h))++")
_NOT_ZERO = re.compile("[1-9]")


def _is_zero(value: Any) -> bool:
    """Whether a `keep_alive`, a number of seconds or a Go duration ("5m", "1h30m"), is 0: the model is to be unloaded. A numeric
    string without a unit is wrong, as in Ollama."""
    if value is None:
        return False
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return value == 0
    if not isinstance(value, str):
        raise wrong("must be a number of seconds or a duration")
    if value not in ("0", "+0", "-0") and (
        len(value) > _MAX_DURATION_CHARS or _DURATION.fullmatch(value) is None
    ):
        raise wrong("must be a number of seconds, or a duration with a unit, such as 5m or 1h30m")
    return _NOT_ZERO.search(value) is None


_KeepAlive = Annotated[Any, AfterValidator(_is_zero), WithJsonSchema({"type": ["string", "number", "null"]})]


# --- options -----------------------------------------------------------------------------------------
_LARGEST = 1 << 63


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LARGEST:
        raise wrong("must be a number")
    return value


def _integer(value: Any) -> int:
    """Go reads every JSON number as a float first, so 10.0 is an integer there."""
    return int(_number(value))


_Number = Annotated[
    Any, AfterValidator(_number), says("must be a number"), WithJsonSchema({"type": "number"})
]
_Integer = Annotated[
    Any, AfterValidator(_integer), says("must be an integer"), WithJsonSchema({"type": "integer"})
]


class Options(TypedDict, total=False):
    """Options of a request. Options that load a model (`num_ctx` and the like) are the fleet's business."""

    num_predict: _Integer | None
    seed: _Integer | None
    temperature: _Number | None
    top_p: _Number | None
    top_k: _Integer | None
    min_p: _Number | None
    presence_penalty: _Number | None
    frequency_penalty: _Number | None
    repeat_penalty: _Number | None
    stop: Annotated[list[Text] | None, says("must be a list of strings")]


# --- bodies ------------------------------------------------------------------------------------------
_Format = Annotated[Literal["json", ""] | Object | None, says('must be "json" or a JSON schema')]
_Think = Annotated[
    bool | Literal["low", "medium", "high", "max", ""] | None,
    says('must be a boolean, "low", "medium", "high" or "max"'),
]
_Images = Annotated[
    list[Annotated[Text, Field(min_length=1)]] | None,
    Field(max_length=MAX_PARTS),
    says(f"must be a list of at most {MAX_PARTS} base64 strings"),
]
_TopLogprobs = Annotated[int, Field(ge=0, le=20)]


class Common(TypedDict, total=False):
    """What all bodies have. `name` is the older spelling of `model`. `routing` is checked later."""

    model: Text | None
    name: Text | None
    stream: bool | None
    keep_alive: _KeepAlive
    options: Options | None
    truncate: bool | None
    shift: bool | None
    routing: Any


class Generating(Common, total=False):
    """What chat and generate have."""

    format: _Format
    think: _Think
    logprobs: bool | None
    top_logprobs: _TopLogprobs | None


class OllamaFunction(TypedDict, total=False):
    name: Text | None
    arguments: Any


class ToolCall(TypedDict, total=False):
    id: Text | None
    function: Required[OllamaFunction]


class OllamaMessage(TypedDict, total=False):
    role: Required[Annotated[Text, Field(min_length=1)]]
    content: Text | None
    images: _Images
    thinking: Text | None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None
    tool_name: Text | None
    tool_call_id: Text | None


class OllamaChat(Generating, total=False):
    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None
    tools: Annotated[list[Object], Field(max_length=MAX_TOOLS, fail_fast=True)] | None


class OllamaGenerate(Generating, total=False):
    prompt: Text | None
    suffix: Text | None
    system: Text | None
    template: Text | None
    context: List | None
    images: _Images
    raw: bool | None


class OllamaEmbed(Common, total=False):
    input: Annotated[Text | list[Text] | None, says("must be a string or a list of strings")]
    dimensions: Annotated[int, Field(ge=0)] | None


class OllamaEmbeddings(Common, total=False):
    """The older endpoint."""

    prompt: Text | None


CHAT, GENERATE, EMBED, EMBEDDINGS = (
    Check(OllamaChat),
    Check(OllamaGenerate),
    Check(OllamaEmbed),
    Check(OllamaEmbeddings),
)
