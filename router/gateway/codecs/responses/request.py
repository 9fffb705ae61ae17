"""Requests of OpenAI's Responses API translated to the chats that the router works with.

Engines get a chat, which all of them know. Nothing is stored here, so a field that needs a stored answer is refused.
Fields that the Responses API does not have (`seed`, `stop`, `top_k`, ...) pass to the engine unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.core.errors import invalid_request
from router.gateway.codecs.codec import Translated
from router.gateway.codecs.responses.fields import (
    ALLOWED_TOOLS,
    BODY,
    NAMESPACE_TOOLS,
    NO_OTHER_FIELDS,
    OTHER_NAMES,
    TOOL_CHOICE,
    UNSUPPORTED,
    FunctionTool,
    ResponseBody,
)
from router.request.validation import MAX_TOOLS

#: Fields that chats have too.
_SAME = frozenset(
    ("stream", "temperature", "top_p", "user", "safety_identifier", "prompt_cache_key", "service_tier", "n")
)
#: Fields that are translated or answered here, or refused.
_OURS = (frozenset(ResponseBody.__annotations__) | UNSUPPORTED.keys()) - _SAME
_ONLY_HERE = ("instructions", "max_output_tokens", "text", "reasoning", "tools", "include")
_LOGPROBS = "message.output_text.logprobs"
_Messages = list[dict[str, Any]]


def responses_to_chat(body: Mapping[str, Any]) -> Translated:
    """Translate a body of /v1/responses. Raises a 400 Refusal that names `param`."""
    NO_OTHER_FIELDS(body)
    given: ResponseBody = BODY(body)
    messages = _messages_of(given.get("input"))
    if given.get("instructions"):
        messages.insert(0, {"role": "system", "content": given["instructions"]})
    if not messages:
        raise invalid_request("input must not be empty.", "input")
    into = {name: value for name, value in body.items() if name not in _OURS}
    into["messages"] = messages
    if given.get("max_output_tokens") is not None:
        into["max_completion_tokens"] = given["max_output_tokens"]
    namespaces = _tools(given, into)
    _text_format(given, into)
    effort = (given.get("reasoning") or {}).get("effort")
    if effort is not None:
        into["reasoning_effort"] = effort
    if given.get("top_logprobs") or _LOGPROBS in (given.get("include") or ()):
        into["logprobs"] = True
        into["top_logprobs"] = given.get("top_logprobs") or 0
    return Translated(into, given.get("stream") is True, echo=_echo(body), namespaces=namespaces)


def is_response(given: Mapping[str, Any]) -> bool:
    """Whether a body with `input` is a response's, not an embedding's: only responses have items or these fields."""
    items = given.get("input")
    if isinstance(items, list) and items and isinstance(items[0], dict):
        return True
    return items is not None and any(name in given for name in _ONLY_HERE)


def renamed(param: str | None) -> str | None:
    """The Responses API's name of a chat's field."""
    if param is None:
        return None
    head = param.partition("[")[0].partition(".")[0]
    return OTHER_NAMES.get(head, param)


# --- the input as messages ----------------------------------------------------------------------------
def _messages_of(given: str | Sequence[dict[str, Any]] | None) -> _Messages:
    """The messages of a checked string or list of items."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: _Messages = []
    for item in given or ():
        if "role" in item:
            _add_message(item["role"], _content(item["content"]), messages)
        elif "arguments" in item:
            name = item["name"] if item.get("namespace") is None else _joined(item["namespace"], item["name"])
            function = {"name": name, "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            _turn(messages).setdefault("tool_calls", []).append(call)
        elif "output" in item:
            output = _content(item["output"])
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
        elif thoughts := item.get("content") or item.get("summary"):
            # Reasoning without text (encrypted elsewhere) means nothing to an engine.
            text = "\n".join([thought["text"] for thought in thoughts])
            _turn(messages, "reasoning", "content", "tool_calls")["reasoning"] = text
    return messages


def _add_message(role: str, content: str | list[dict[str, Any]], messages: _Messages) -> None:
    if role == "assistant":
        _turn(messages, "content", "tool_calls")["content"] = content
    else:
        # `developer` is the newer name of `system`; not every chat template knows it.
        messages.append({"role": "system" if role == "developer" else role, "content": content})


def _turn(messages: _Messages, *taken: str) -> dict[str, Any]:
    """The assistant's message that the next item belongs to: the last message if it has none of the members `taken`, or a
    new one. Reasoning, text and calls that follow one another are one message of a chat."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(last.get(name) is not None for name in taken):
        last = {"role": "assistant", "content": None}
        messages.append(last)
    return last


def _content(given: str | Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A message's content. Parts are used only where text alone is not enough: some chat templates take no parts."""
    if isinstance(given, str):
        return given
    if len(given) == 1 and "text" in given[0]:
        text: str = given[0]["text"]
        return text
    return [_part(part) for part in given] or ""


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    if "refusal" in part:
        return {"type": "refusal", "refusal": part["refusal"]}
    image = {"url": part["image_url"]}
    if (detail := part.get("detail")) is not None:
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


# --- tools and formats -------------------------------------------------------------------------------
def _tools(given: ResponseBody, into: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Write the functions to the chat `into`. Returns the namespace and the name of each function in one, by its name in the
    chat. Tools that the server or the model's vendor would run are left out: agents send them beside their functions."""
    tools, namespaces = [], {}
    for namespace, function in _functions(given.get("tools") or ()):
        name = function["name"]
        if namespace is not None:
            name = _joined(namespace, name)
            namespaces[name] = namespace, function["name"]
        tools.append(_tool(function, name))
    if given.get("tools") and not tools:
        raise invalid_request("tools must have a function: other tools are not supported here.", "tools")
    choice: Any = given.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        # Few engines know a chat's form of it: they get the allowed tools alone.
        allowed = ALLOWED_TOOLS(choice, "tool_choice")
        choice, names = allowed["mode"], {each["name"] for each in allowed["tools"]}
        tools = [tool for tool in tools if tool["function"]["name"] in names]
        if {tool["function"]["name"] for tool in tools} != names:
            raise invalid_request("tool_choice.tools must name functions in tools.", "tool_choice.tools")
    elif isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": TOOL_CHOICE(choice, "tool_choice")["name"]}}
    if not tools:
        if choice not in (None, "auto", "none"):
            raise invalid_request("tool_choice needs tools.", "tool_choice")
        return namespaces
    into["tools"] = tools
    if choice is not None:
        into["tool_choice"] = choice
    if given.get("parallel_tool_calls") is not None:
        into["parallel_tool_calls"] = given["parallel_tool_calls"]
    return namespaces


def _functions(tools: Sequence[Any]) -> Iterator[tuple[str | None, FunctionTool]]:
    """Each function, with its namespace. Raises a 400 for more than `MAX_TOOLS` tools in namespaces."""
    left = MAX_TOOLS
    for index, tool in enumerate(tools):
        if tool["type"] == "function":
            yield None, tool
        elif tool["type"] == "namespace":
            left -= len(tool["tools"])
            if left < 0:
                raise invalid_request(f"tools must have at most {MAX_TOOLS} entries.", "tools")
            for each in NAMESPACE_TOOLS(tool["tools"], f"tools[{index}].tools"):
                if each["type"] == "function":
                    yield tool["name"], each


def _joined(namespace: str, name: str) -> str:
    """A chat's name of a function in a namespace: chats have no namespaces."""
    return f"{namespace}__{name}"


def _tool(given: FunctionTool, name: str) -> dict[str, Any]:
    members = ("parameters", "description")
    function = {"name": name, **{each: value for each in members if (value := given.get(each)) is not None}}
    if isinstance(given.get("strict"), bool):
        function["strict"] = given["strict"]
    return {"type": "function", "function": function}


def _text_format(given: ResponseBody, into: dict[str, Any]) -> None:
    text = given.get("text") or {}
    if text.get("verbosity") is not None:
        into["verbosity"] = text["verbosity"]
    wanted: Mapping[str, Any] = text.get("format") or {}
    if "schema" in wanted:
        schema = {name: value for name, value in wanted.items() if value is not None}
        into["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted.get("type") == "json_object":
        into["response_format"] = {"type": "json_object"}


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
