"""Requests of OpenAI's Responses API translated to the chats that the router works with.

The field names are those of https://platform.openai.com/docs/api-reference/responses/create. Engines are asked for a
chat, which all of them know. Nothing is stored here, so whatever needs a stored answer is refused by name. Fields that
the Responses API does not know (`seed`, `stop`, `top_k`, ...) pass to the engine as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from router.core.errors import invalid_request
from router.core.quoting import cut
from router.gateway.codecs.responses.input import messages_of, object_at, string_of, unknown
from router.request.body import LARGEST_NUMBER, MAX_TOOLS, at_most

#: Features that need stored answers or tools run by the server.
_REFUSED = {
    "previous_response_id": "nothing is stored here: send the whole conversation as input",
    "conversation": "nothing is stored here: send the whole conversation as input",
    "prompt": "no prompt templates are stored here: send instructions and input",
    "context_management": "conversations are not shortened here: send a shorter input",
}
#: Fields of a chat that have another name here.
_NAMED_OTHERWISE = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "top_logprobs",
    "functions": "tools",
    "function_call": "tool_choice",
}
#: What is answered or checked here and means nothing to an engine's chat.
_OURS = frozenset(
    {"input", "instructions", "max_output_tokens", "text", "reasoning", "tools", "tool_choice", "include"}
    | {
        "metadata",
        "store",
        "truncation",
        "background",
        "stream_options",
        "max_tool_calls",
        "parallel_tool_calls",
    }
    | {"top_logprobs"}
)
_ONLY_HERE = ("instructions", "max_output_tokens", "text", "reasoning", "tools", "include")
_NUMBER = (int, float)
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "stream": ((bool,), "a boolean"),
    "store": ((bool,), "a boolean"),
    "background": ((bool,), "a boolean"),
    "instructions": ((str,), "a string"),
    "max_output_tokens": ((int,), "an integer"),
    "max_tool_calls": ((int,), "an integer"),
    "top_logprobs": ((int,), "an integer"),
    "parallel_tool_calls": ((bool,), "a boolean"),
    "temperature": (_NUMBER, "a number"),
    "top_p": (_NUMBER, "a number"),
    "metadata": ((dict,), "an object"),
    "text": ((dict,), "an object"),
    "reasoning": ((dict,), "an object"),
    "stream_options": ((dict,), "an object"),
    "tools": ((list,), "a list"),
    "include": ((list,), "a list"),
    "truncation": ((str,), "a string"),
    "user": ((str,), "a string"),
    "safety_identifier": ((str,), "a string"),
    "prompt_cache_key": ((str,), "a string"),
    "service_tier": ((str,), "a string"),
}
_MAX_ENTRIES = 64  # of `include` and `metadata`
_LOGPROBS = "message.output_text.logprobs"


class AskedResponse(NamedTuple):
    """A request as a chat: `body` is OpenAI's chat request, with `routing` if the client gave one; `echo` holds the
    members of the answer that repeat the request."""

    body: dict[str, Any]
    stream: bool
    echo: dict[str, Any]


def responses_to_chat(given: Mapping[str, Any]) -> AskedResponse:
    """Translate a body of /v1/responses. Raises a 400 Refusal that names `param`."""
    _check(given)
    messages = messages_of(given.get("input"))
    if given.get("instructions"):
        messages.insert(0, {"role": "system", "content": given["instructions"]})
    if not messages:
        raise invalid_request("input must not be empty.", "input")
    into = {name: value for name, value in given.items() if name not in _OURS and name not in _REFUSED}
    into["messages"] = messages
    if given.get("max_output_tokens") is not None:
        into["max_completion_tokens"] = given["max_output_tokens"]
    _tools(given, into)
    _text_format(given, into)
    effort = _member(given, "reasoning", "effort")
    if effort is not None:
        into["reasoning_effort"] = effort
    if given.get("top_logprobs") or _LOGPROBS in (given.get("include") or ()):
        into["logprobs"] = True
        into["top_logprobs"] = given.get("top_logprobs") or 0
    return AskedResponse(into, given.get("stream") is True, _echo(given))


def is_response(given: Mapping[str, Any]) -> bool:
    """Whether a body with `input` asks for a response, not for an embedding: only responses have items or these fields."""
    items = given.get("input")
    if isinstance(items, list) and items and isinstance(items[0], dict):
        return True
    return items is not None and any(name in given for name in _ONLY_HERE)


def renamed(param: str | None) -> str | None:
    """A chat's field, as an engine names it, by its name in the Responses API."""
    if param is None:
        return None
    head = param.partition("[")[0].partition(".")[0]
    return _NAMED_OTHERWISE.get(head, param)


# --- checks ------------------------------------------------------------------------------------------
def _check(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value is None:
            continue
        if name in _REFUSED:
            raise invalid_request(f"{name} is not supported: {_REFUSED[name]}.", name)
        if name in _NAMED_OTHERWISE:
            raise invalid_request(f"{name} is not a field of this API; use {_NAMED_OTHERWISE[name]}.", name)
        rule = _TYPES.get(name)
        if rule is not None:
            kinds, what = rule
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise invalid_request(f"{name} must be {what}.", name)
    if given.get("background"):
        raise invalid_request("background is not supported: nothing is stored here.", "background")
    if given.get("n") not in (None, 1):
        raise invalid_request("n is not a field of this API: a response is one answer.", "n")
    for name, least in (("max_output_tokens", 1), ("max_tool_calls", 0), ("top_logprobs", 0)):
        value = given.get(name)
        if value is not None and not least <= value <= LARGEST_NUMBER:
            raise invalid_request(f"{name} must be at least {least} and at most {LARGEST_NUMBER}.", name)
    if (given.get("top_logprobs") or 0) > 20:
        raise invalid_request("top_logprobs must be at most 20.", "top_logprobs")
    at_most(_MAX_ENTRIES, given.get("include") or (), "include")
    at_most(_MAX_ENTRIES, given.get("metadata") or {}, "metadata")
    at_most(MAX_TOOLS, given.get("tools") or (), "tools")
    for number, wanted in enumerate(given.get("include") or ()):
        if not isinstance(wanted, str):
            raise invalid_request(f"include[{number}] must be a string.", f"include[{number}]")
    for name, value in (given.get("metadata") or {}).items():
        if not isinstance(value, str):
            raise invalid_request(f"metadata.{cut(name)} must be a string.", "metadata")
    if given.get("truncation") not in (None, "auto", "disabled"):
        raise invalid_request("truncation must be auto or disabled.", "truncation")


def _member(given: Mapping[str, Any], name: str, member: str) -> str | None:
    """A string inside an object, both optional."""
    value = (given.get(name) or {}).get(member)
    if value is not None and not isinstance(value, str):
        raise invalid_request(f"{name}.{member} must be a string.", f"{name}.{member}")
    return value


# --- tools and formats -------------------------------------------------------------------------------
def _tools(given: Mapping[str, Any], into: dict[str, Any]) -> None:
    tools = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(given.get("tools") or ())]
    choice = given.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise unknown(choice.get("type"), "tool_choice.type", "Choices")
        choice = {"type": "function", "function": {"name": string_of(choice, "name", "tool_choice")}}
    elif choice not in (None, "auto", "none", "required"):
        raise invalid_request("tool_choice must be auto, none, required or name a function.", "tool_choice")
    if not tools:
        if choice not in (None, "auto", "none"):
            raise invalid_request("tool_choice needs tools.", "tool_choice")
        return
    into["tools"] = tools
    if choice is not None:
        into["tool_choice"] = choice
    if given.get("parallel_tool_calls") is not None:
        into["parallel_tool_calls"] = given["parallel_tool_calls"]


def _tool(given: Any, at: str) -> dict[str, Any]:
    tool = object_at(given, at)
    if tool.get("type") != "function":
        raise unknown(tool.get("type"), f"{at}.type", "Tools")
    function: dict[str, Any] = {"name": string_of(tool, "name", at)}
    if tool.get("parameters") is not None:
        function["parameters"] = object_at(tool["parameters"], f"{at}.parameters")
    if tool.get("description") is not None:
        function["description"] = string_of(tool, "description", at)
    if isinstance(tool.get("strict"), bool):
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _text_format(given: Mapping[str, Any], into: dict[str, Any]) -> None:
    verbosity = _member(given, "text", "verbosity")
    if verbosity is not None:
        into["verbosity"] = verbosity
    wanted = (given.get("text") or {}).get("format")
    if wanted is None:
        return
    wanted = object_at(wanted, "text.format")
    kind = wanted.get("type")
    if kind == "json_object":
        into["response_format"] = {"type": kind}
    elif kind == "json_schema":
        schema: dict[str, Any] = {
            "name": string_of(wanted, "name", "text.format"),
            "schema": object_at(wanted.get("schema"), "text.format.schema"),
        }
        schema |= {name: wanted[name] for name in ("description", "strict") if wanted.get(name) is not None}
        into["response_format"] = {"type": kind, "json_schema": schema}
    elif kind != "text":
        raise unknown(kind, "text.format.type", "Formats")


# --- the request's part of the answer ----------------------------------------------------------------
#: Members that an answer repeats as given, else with this value; None where only the engine knows its own default.
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": None,
    "service_tier": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}


def _echo(given: Mapping[str, Any]) -> dict[str, Any]:
    echo = {name: default if given.get(name) is None else given[name] for name, default in _ECHOED.items()}
    text = given.get("text") or {}
    reasoning = given.get("reasoning") or {}
    echo["tools"] = given.get("tools") or []
    echo["metadata"] = given.get("metadata") or {}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    echo["reasoning"] = {"effort": None, "summary": None, **reasoning}
    echo |= {"background": False, "previous_response_id": None, "store": False, "truncation": "disabled"}
    return echo
