"""Translates OpenAI-shaped bodies to Ollama's native requests, and Ollama's non-streaming answers to OpenAI's.

A request that Ollama cannot serve (`n` above 1, token ids as prompts, images by URL) is refused before anything is
sent. Fields without a counterpart (`logit_bias`, `tool_choice: required`) are left out, as in Ollama's own OpenAI
endpoint.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import orjson

from backends.bounded_json import loads_event
from backends.engine_numbers import token_count
from router.core.errors import UpstreamError, UpstreamRejected
from router.core.interfaces import Call

#: OpenAI's (or vLLM's) field and Ollama's option; sent only if given.
OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repeat_penalty",
}
_THINK: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "max",
}
#: The most characters in all arguments of a chat's tool calls. They are parsed, because Ollama takes objects.
MAX_ARGUMENTS_CHARS = 2 * 1024 * 1024
_GENERATE_FIELDS = ("suffix", "system", "raw")


def _refuse(message: str, param: str) -> UpstreamRejected:
    return UpstreamRejected(message, 400, param=param)


def _options(call: Call, num_ctx: int | None) -> dict[str, Any]:
    body = call.body
    options = {ours: body[name] for name, ours in OPTIONS.items() if body.get(name) is not None}
    stop = body.get("stop")
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    bounds = [v for v in (body.get("max_completion_tokens"), body.get("max_tokens")) if type(v) is int]
    if call.max_output_tokens is not None:
        bounds.append(call.max_output_tokens)
    if bounds:
        options["num_predict"] = min(bounds)
    if num_ctx is not None:
        # Always the same for a model: another value would make Ollama load the model again.
        options["num_ctx"] = num_ctx
    extra = body.get("vllm_xargs")
    if isinstance(extra, dict) and "emulate_output_tokens" in extra:
        options["emulate_output_tokens"] = extra["emulate_output_tokens"]
    return options


def _format(response_format: Any) -> Any:
    if not isinstance(response_format, dict):
        return None
    if response_format.get("type") == "json_object":
        return "json"
    schema = response_format.get("json_schema")
    if response_format.get("type") == "json_schema" and isinstance(schema, dict):
        return schema.get("schema")
    return None


def native_body(
    call: Call, num_ctx: int | None, keep_alive: str | int | None = None, *, stream: bool = True
) -> dict[str, Any]:
    """The body for /api/chat, /api/generate or /api/embed. Raises UpstreamRejected for a request that Ollama cannot
    serve."""
    if call.api == "embeddings":
        return _embed_body(call, num_ctx, keep_alive)
    request = _generating_body(call, num_ctx, keep_alive, stream)
    (_add_chat if call.api == "chat" else _add_prompt)(request, call.body)
    return request


def _generating_body(
    call: Call, num_ctx: int | None, keep_alive: str | int | None, stream: bool
) -> dict[str, Any]:
    body = call.body
    for name in ("n", "best_of"):
        if type(body.get(name)) is int and body[name] > 1:
            raise _refuse(f"this engine gives one answer a request ({name} must be 1)", name)
    if body.get("prompt_logprobs") is not None:
        raise _refuse("this engine gives no log probabilities of a prompt", "prompt_logprobs")
    if body.get("use_beam_search"):
        raise _refuse("this engine does not search by beams", "use_beam_search")
    request: dict[str, Any] = {
        "model": call.candidate.upstream_model,
        "stream": stream,
        # A prompt that does not fit is an error; by default Ollama would cut it without a message.
        "truncate": False,
        "shift": False,
        "options": _options(call, num_ctx),
    }
    if keep_alive is not None:
        request["keep_alive"] = keep_alive
    wanted = _format(body.get("response_format"))
    if wanted is not None:
        request["format"] = wanted
    effort = body.get("reasoning_effort")
    if isinstance(effort, str) and effort in _THINK:
        request["think"] = _THINK[effort]
    switches = body.get("chat_template_kwargs")
    if isinstance(switches, dict) and type(switches.get("enable_thinking")) is bool:
        request.setdefault("think", switches["enable_thinking"])
    logprobs = body.get("logprobs")
    if logprobs or (call.api == "completions" and type(logprobs) is int):  # 0: of the generated tokens alone
        request["logprobs"] = True
        top = body.get("top_logprobs", logprobs if call.api == "completions" else None)
        if type(top) is int:
            request["top_logprobs"] = top
    return request


def _add_chat(request: dict[str, Any], body: Mapping[str, Any]) -> None:
    names: dict[str, str] = {}  # names of tools, by the id of their call
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise _refuse("messages must be a list", "messages")
    if _arguments_chars(messages) > MAX_ARGUMENTS_CHARS:
        raise _refuse("the arguments of the tool calls are too long for this engine", "messages")
    request["messages"] = [_message(message, names) for message in messages]
    tools = body.get("tools")
    if tools and body.get("tool_choice") != "none":
        request["tools"] = tools


def _add_prompt(request: dict[str, Any], body: Mapping[str, Any]) -> None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise _refuse("this engine takes one text as a prompt", "prompt")
    request["prompt"] = prompt
    if body.get("echo"):
        raise _refuse("this engine does not echo prompts", "echo")
    for name in _GENERATE_FIELDS:
        if body.get(name) is not None:
            request[name] = body[name]


def _embed_body(call: Call, num_ctx: int | None, keep_alive: str | int | None) -> dict[str, Any]:
    texts = call.body.get("input")
    if not isinstance(texts, str) and not (
        isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    ):
        raise _refuse("this engine embeds texts only", "input")
    request: dict[str, Any] = {"model": call.candidate.upstream_model, "input": texts, "truncate": False}
    if num_ctx is not None:
        request["options"] = {"num_ctx": num_ctx}
    if keep_alive is not None:
        request["keep_alive"] = keep_alive
    if call.body.get("dimensions") is not None:
        request["dimensions"] = call.body["dimensions"]
    return request


def _arguments_chars(messages: list[Any]) -> int:
    """The number of characters that would be parsed as arguments of tool calls."""
    chars = 0
    for message in messages:
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            chars += len(arguments) if isinstance(arguments, str) else 0
    return chars


def _message(message: Any, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _refuse("a message must be an object", "messages")
    role = message.get("role")
    text, images = _content(message.get("content"))
    ours: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": text}
    if images:
        ours["images"] = images
    thinking = message.get("reasoning") or message.get("reasoning_content")
    if isinstance(thinking, str):
        ours["thinking"] = thinking
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        ours["tool_calls"] = [_tool_call(call, names) for call in calls]
    if role == "tool":
        call_id = message.get("tool_call_id")
        if isinstance(call_id, str):
            ours["tool_call_id"] = call_id
            if call_id in names:
                ours["tool_name"] = names[call_id]
        if isinstance(message.get("name"), str):
            ours["tool_name"] = message["name"]
    return ours


def _content(content: Any) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    if not isinstance(content, list):
        raise _refuse("a message's content must be text or a list of parts", "messages")
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in {"text", "refusal"} and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif kind == "image_url":
            images.append(_image(part.get("image_url")))
        else:
            raise _refuse("this engine takes text and images only", "messages")
    # A single text stays as it is: a long one keeps its JSON.
    return texts[0] if len(texts) == 1 else "\n".join(texts), images


def _image(image: Any) -> str:
    url = image.get("url") if isinstance(image, dict) else image
    if isinstance(url, str) and url.startswith("data:"):
        head, comma, data = url.partition(",")
        if comma and head.endswith(";base64"):
            return data
    raise _refuse("this engine takes images as base64 data URLs only", "messages")


def _tool_call(call: Any, names: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _refuse("a tool call must name its function", "messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = loads_event(arguments.encode()) if arguments.strip() else {}
        except ValueError as error:
            raise _refuse("a tool call's arguments are not JSON", "messages") from error
    if not isinstance(arguments, dict):
        raise _refuse("a tool call's arguments must be a JSON object", "messages")
    ours: dict[str, Any] = {"function": {"name": function["name"], "arguments": arguments}}
    if isinstance(call.get("id"), str):
        names[call["id"]] = function["name"]
        ours["id"] = call["id"]
    return ours


# --- answers ------------------------------------------------------------------------------------------
def usage_of(answer: Mapping[str, Any]) -> dict[str, int]:
    """OpenAI's usage. Ollama omits counts of zero."""
    prompt_tokens = token_count(answer.get("prompt_eval_count")) or 0
    output_tokens = token_count(answer.get("eval_count")) or 0
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


def finish_reason_of(answer: Mapping[str, Any], called_tools: bool) -> str:
    """OpenAI's finish reason. `load` and `unload` are the reasons of empty answers, which simply stopped."""
    if called_tools:
        return "tool_calls"
    return "length" if answer.get("done_reason") == "length" else "stop"


def tool_calls_of(calls: list[Any], request_id: str, first_index: int) -> list[dict[str, Any]]:
    """OpenAI's tool calls: arguments as JSON text, and an id if Ollama gave none."""
    ours = []
    for index, call in enumerate(calls, first_index):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            call_id = call.get("id")
            ours.append(
                {
                    "index": index,
                    "id": call_id if isinstance(call_id, str) and call_id else f"call_{request_id}_{index}",
                    "type": "function",
                    "function": {
                        "name": function.get("name"),
                        "arguments": orjson.dumps(function.get("arguments") or {}).decode(),
                    },
                }
            )
    return ours


def logprobs_of(tokens: list[Any], api: str) -> dict[str, Any]:
    """OpenAI's log probabilities: a list of tokens for chats, parallel lists for completions."""
    items = [token for token in tokens if isinstance(token, dict)]
    if api == "chat":
        # OpenAI's clients read these members of every token; Ollama omits them where they are empty.
        empty: dict[str, Any] = {"bytes": None, "top_logprobs": []}
        return {"content": [empty | item for item in items], "refusal": None}
    return {
        "tokens": [item.get("token") for item in items],
        "token_logprobs": [item.get("logprob") for item in items],
        "top_logprobs": [
            {top.get("token"): top.get("logprob") for top in item.get("top_logprobs") or []} for item in items
        ],
    }


def non_streaming_answer(answer: Mapping[str, Any], call: Call, created: int) -> dict[str, Any]:
    """A non-streaming /api/chat or /api/generate answer in OpenAI's shape."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None}
    called = False
    if call.api == "chat":
        theirs = answer.get("message")
        theirs = theirs if isinstance(theirs, dict) else {}
        message: dict[str, Any] = {"role": "assistant", "content": theirs.get("content") or ""}
        if theirs.get("thinking"):
            message["reasoning"] = theirs["thinking"]
        calls = tool_calls_of(theirs.get("tool_calls") or [], call.request_id, 0)
        if calls:
            called = True
            message["tool_calls"] = [{k: v for k, v in one.items() if k != "index"} for one in calls]
        choice["message"] = message
    else:
        choice["text"] = answer.get("response") or ""
        if answer.get("thinking"):
            choice["reasoning"] = answer["thinking"]
    if isinstance(answer.get("logprobs"), list):
        choice["logprobs"] = logprobs_of(answer["logprobs"], call.api)
    choice["finish_reason"] = finish_reason_of(answer, called)
    chat = call.api == "chat"
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{call.request_id}",
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": call.candidate.model,
        "choices": [choice],
        "usage": usage_of(answer),
    }


def embeddings_answer(answer: Mapping[str, Any], call: Call) -> dict[str, Any]:
    """An /api/embed answer in OpenAI's shape, in the requested encoding."""
    vectors = answer.get("embeddings")
    packed = call.body.get("encoding_format") == "base64"
    try:
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": b64encode(array("f", vector).tobytes()).decode() if packed else vector,
            }
            for index, vector in enumerate(vectors if isinstance(vectors, list) else [])
        ]
    except (TypeError, OverflowError) as error:
        raise UpstreamError("the engine's answer has a vector that is not a list of numbers") from error
    tokens = usage_of(answer)["prompt_tokens"]
    return {
        "object": "list",
        "data": data,
        "model": call.candidate.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
