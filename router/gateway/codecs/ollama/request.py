"""Requests of Ollama's API translated to the OpenAI-shaped form that the router works with.

Meanings and defaults are those of Ollama's documentation and server. Load-time options (`num_ctx` and the like) and
`keep_alive` are dropped: where and how models are loaded is the fleet's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from backends.ollama_bodies import OPTIONS
from router.core.errors import invalid_request, model_not_found
from router.core.raw_json import dumps
from router.gateway.codecs.codec import Translated
from router.gateway.codecs.ollama.fields import (
    CHAT,
    EMBED,
    EMBEDDINGS,
    GENERATE,
    Common,
    Generating,
    OllamaChat,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaGenerate,
    OllamaMessage,
    ToolCall,
)


# --- endpoints ---------------------------------------------------------------------------------------
def chat_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a /api/chat request. Streaming is Ollama's default. Raises a 400 Refusal that names `param`."""
    given: OllamaChat = CHAT(body)
    into: dict[str, Any] = {"model": _model(given)}
    _generating(given, into)
    if given.get("logprobs"):
        into["logprobs"] = True
        into["top_logprobs"] = given.get("top_logprobs") or 0
    if tools := given.get("tools"):
        into["tools"] = tools
    stream = _stream(given)
    messages = given.get("messages")
    if not messages:
        return Translated(into, stream, load=_load(given))
    conversation = _Conversation()
    into["messages"] = [conversation.translate(message) for message in messages]
    into["stream"] = stream
    return Translated(into, stream)


def generate_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a /api/generate request: to a completion if the prompt is `raw` or has a `suffix`, otherwise to a chat of
    a system and a user message. Raises a 400 or 404 Refusal that names `param`.

    A custom `template` and token ids in `context` are refused: both belong to one loaded model.
    """
    given: OllamaGenerate = GENERATE(body)
    into: dict[str, Any] = {"model": _model(given, missing_is_unknown=True)}
    prompt, suffix, system = given.get("prompt"), given.get("suffix"), given.get("system")
    template, context, images = given.get("template"), given.get("context"), given.get("images") or ()
    raw, stream = given.get("raw"), _stream(given)
    if raw and (template or system or context):
        raise invalid_request("raw mode does not support template, system, or context.", "raw")
    if template:
        raise invalid_request("template is not supported: render the prompt and send it raw.", "template")
    if context:
        raise invalid_request("context is not supported: send the history to /api/chat.", "context")
    _generating(given, into)
    top_logprobs = (given.get("top_logprobs") or 0) if given.get("logprobs") else None
    if not prompt:
        return Translated(into, stream, load=_load(given))
    into["stream"] = stream
    if raw or suffix:
        if images:
            raise invalid_request("images need a chat: send them without raw and suffix.", "images")
        into["prompt"] = prompt
        if suffix:
            into["suffix"] = suffix
        if raw:
            into["raw"] = True
        if top_logprobs is not None:
            into["logprobs"] = top_logprobs
        for field in ("chat_template_kwargs", "reasoning_effort"):
            into.pop(field, None)
        return Translated(into, stream, "completions")
    if top_logprobs is not None:
        into["logprobs"] = True
        into["top_logprobs"] = top_logprobs
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _content_of(prompt, images)})
    into["messages"] = messages
    return Translated(into, stream)


def embed_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a /api/embed request. Without any input it only loads the model."""
    given: OllamaEmbed = EMBED(body)
    into: dict[str, Any] = {"model": _model(given, missing_is_unknown=True)}
    if size := given.get("dimensions"):
        into["dimensions"] = size
    return _embedding(given, into, given.get("input"))


def embeddings_to_openai(body: dict[str, Any]) -> Translated:
    """Translate a request of the older /api/embeddings: one `prompt`."""
    given: OllamaEmbeddings = EMBEDDINGS(body)
    return _embedding(given, {"model": _model(given)}, given.get("prompt"))


def _embedding(given: Common, into: dict[str, Any], texts: str | list[str] | None) -> Translated:
    if given.get("routing") is not None:
        into["routing"] = given["routing"]
    if not texts:
        return Translated(into, False, "embeddings", _load(given))
    into["input"] = texts
    into["encoding_format"] = "float"
    return Translated(into, False, "embeddings")


# --- fields ------------------------------------------------------------------------------------------
#: Option -> field of the OpenAI-shaped body.
_OPTIONS = {"num_predict": "max_tokens", "stop": "stop"} | {theirs: ours for ours, theirs in OPTIONS.items()}


def _model(given: Common, *, missing_is_unknown: bool = False) -> str:
    """The model's name. An empty one is a 400, or with `missing_is_unknown` the 404 of /api/generate and /api/embed."""
    name = given.get("model") or given.get("name")
    if name:
        return name
    if missing_is_unknown:
        raise model_not_found("model '' not found")
    raise invalid_request("model is required", "model")


def _stream(given: Common) -> bool:
    return given.get("stream") is not False


def _load(given: Common) -> Literal["load", "unload"]:
    return "unload" if given.get("keep_alive") else "load"


def _generating(given: Generating, into: dict[str, Any]) -> None:
    """Translate what chat and generate share."""
    options: Mapping[str, Any] = given.get("options") or {}
    for name, value in options.items():
        # An empty `stop`, a bound of 0 or below and a seed of -1 mean the default.
        unset = (
            value is None
            or value == []
            or (name in ("num_predict", "top_k") and value <= 0)
            or (name == "seed" and value == -1)
        )
        if not unset:
            into[_OPTIONS[name]] = value
    wanted = given.get("format")
    if wanted == "json":
        into["response_format"] = {"type": "json_object"}
    elif isinstance(wanted, dict):
        schema = {"name": "response", "schema": wanted}
        into["response_format"] = {"type": "json_schema", "json_schema": schema}
    if given.get("routing") is not None:
        into["routing"] = given["routing"]
    think = given.get("think")
    if isinstance(think, bool):
        # Chat templates use different names for the switch.
        into["chat_template_kwargs"] = {"enable_thinking": think, "thinking": think}
    elif think:
        into["reasoning_effort"] = think


# --- messages ----------------------------------------------------------------------------------------
#: How the base64 of an image begins, by its type's first bytes.
_IMAGE_TYPES = (("/9j/", "jpeg"), ("iVBOR", "png"), ("R0lGOD", "gif"), ("UklGR", "webp"))


def _content_of(text: str, images: Iterable[str]) -> str | list[dict[str, Any]]:
    """A message's content: the text alone, or parts with `images` (base64 or data URLs)."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        kind = next((kind for start, kind in _IMAGE_TYPES if image.startswith(start)), "png")
        url = image if image.startswith("data:") else f"data:image/{kind};base64,{image}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts if images else text


class _Conversation:
    """Translates messages in order.

    Tool calls of Ollama have no ids, those of OpenAI must have one. Missing ids are made up. A tool's answer without an id
    belongs to the first unanswered call of the tool's name.
    """

    def __init__(self) -> None:
        self._made = 0
        self._open: set[str] = set()  # ids of unanswered calls
        # Unanswered calls in order, by tool, and under "" of all tools. Answered ones are dropped when they are met.
        self._open_of: dict[str, deque[str]] = {}

    def translate(self, message: OllamaMessage) -> dict[str, Any]:
        role = message["role"].lower()
        content = _content_of(message.get("content") or "", message.get("images") or ())
        into: dict[str, Any] = {"role": role, "content": content}
        if thinking := message.get("thinking"):
            into["reasoning_content"] = thinking
        if calls := message.get("tool_calls"):
            self._open.clear()
            self._open_of.clear()
            into["tool_calls"] = [self._call(call) for call in calls]
        if role == "tool":
            tool = message.get("tool_name") or ""
            into["tool_call_id"] = self._answered(message.get("tool_call_id") or "", tool)
            if tool:
                into["name"] = tool
        return into

    def _call(self, call: ToolCall) -> dict[str, Any]:
        function = call["function"]
        name, arguments = function.get("name") or "", function.get("arguments")
        if not isinstance(arguments, str):
            arguments = dumps({} if arguments is None else arguments).decode()
        call_id = call.get("id") or ""
        if not call_id:
            call_id = f"call{self._made:05d}"  # nine letters and digits: all that Mistral's templates accept
            self._made += 1
        self._open.add(call_id)
        for tool in {name, ""}:
            self._open_of.setdefault(tool, deque()).append(call_id)
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _answered(self, call_id: str, tool: str) -> str:
        if call_id:
            self._open.discard(call_id)
            return call_id
        waiting = self._open_of.get(tool, deque())
        while waiting:
            open_id = waiting.popleft()
            if open_id in self._open:
                self._open.discard(open_id)
                return open_id
        return "call00000"
