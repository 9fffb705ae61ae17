"""How each API speaks: OpenAI's on /v1, Ollama's on /api. The relay knows only `ApiCodec`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from backends.sse_events import EventTemplate, chunk_of, event_template
from router.core.errors import Refusal
from router.core.interfaces import Collector


class Translated(NamedTuple):
    """A request of another API in OpenAI's shape.

    `api` is "chat", "completions" or "embeddings"; `body` has the client's model name, and `routing` if the client gave
    it. `load` is set for a request of Ollama's that generates nothing and only loads or unloads the model: it is answered
    at once with that as its `done_reason`. `echo` has the members of a response that repeat the request. `namespaces` has the
    namespace and the name of each function in one, by its name in `body`.
    """

    body: dict[str, Any]
    stream: bool
    api: str = "chat"
    load: Literal["load", "unload"] | None = None
    echo: Mapping[str, Any] = MappingProxyType({})
    namespaces: Mapping[str, tuple[str, str]] = MappingProxyType({})


class ApiCodec(Protocol):
    """Writes the answer of one request in the client's API. `adjust` changes a non-streaming answer before it is
    written; the event loop runs in between where the answer may be large."""

    stream_type: bytes
    body_type: bytes

    @property
    def adjust(self) -> Callable[[dict[str, Any]], Awaitable[None]] | None: ...

    @property
    def usage_collector(self) -> Collector | None: ...

    def first(self, data: bytes) -> bytes:
        """The first bytes of a stream, from complete OpenAI events."""
        ...

    def events(self, data: bytes) -> bytes:
        """The bytes for further complete OpenAI events."""
        ...

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        """The end of a stream."""
        ...

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        """A non-streaming answer, from an OpenAI object with its usage."""
        ...

    def error(self, refusal: Refusal) -> bytes:
        """The body of an error response."""
        ...

    def stream_error(self, refusal: Refusal) -> bytes:
        """The end of a stream that failed after its 200."""
        ...


#: Called with a complete answer: an OpenAI object, or the OpenAI events of a stream; and with its `headway` object.
Ended = Callable[[Mapping[str, Any] | bytes, Mapping[str, Any]], None]


class CopyingCodec:
    """Speaks like `codec`. `ended` gets the complete answer, unless its events are larger than `max_bytes`; then it gets
    none of them (b"")."""

    def __init__(self, codec: ApiCodec, max_bytes: int, ended: Ended) -> None:
        self.stream_type, self.body_type = codec.stream_type, codec.body_type
        self.adjust, self.usage_collector = codec.adjust, codec.usage_collector
        self.error, self.stream_error = codec.error, codec.stream_error
        self._codec = codec
        self._max_bytes = self._left = max_bytes
        self._ended = ended
        self._events: list[bytes] = []

    def first(self, data: bytes) -> bytes:
        # An earlier attempt may have failed on its first events.
        self._left, self._events = self._max_bytes, []
        self._copy(data)
        return self._codec.first(data)

    def events(self, data: bytes) -> bytes:
        self._copy(data)
        return self._codec.events(data)

    def finish(
        self, usage: Mapping[str, Any] | None, finish_reason: str | None, headway: Mapping[str, Any]
    ) -> bytes:
        self._ended(b"".join(self._events), headway)
        return self._codec.finish(usage, finish_reason, headway)

    def non_streaming(self, answer: dict[str, Any], headway: Mapping[str, Any]) -> bytes:
        self._ended(answer, headway)
        return self._codec.non_streaming(answer, headway)

    def _copy(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left >= 0:
            self._events.append(data)
        else:
            self._events.clear()


class EventReader(ABC):
    """Reads the events of an OpenAI stream for a codec that writes others. Most events differ from the one before in their
    text only: these are not parsed."""

    _text_fields: Collection[str]  # of a delta: their text is passed on as it is written
    _template: EventTemplate | None = None

    def _read(self, data: bytes, out: list[bytes]) -> None:
        """Write what complete events say to `out`. Raises UpstreamError for an event that is not JSON."""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        at, end = 0, len(data)
        while at < end:
            template = self._template
            if template is not None and data.startswith(template.head, at):
                pieces, at, foreign = template.read(data, at)
                self._write_texts(template.field, pieces, out)
                if not foreign:
                    continue
            stop = data.find(b"\n\n", at) + 2
            stop = end if stop < 2 else stop
            self._read_event(data[at:stop], out)
            at = stop

    def _read_event(self, event: bytes, out: list[bytes]) -> None:
        chunk = chunk_of(event)
        if chunk is None:
            return
        self._note(chunk)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index"):
            return
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else None
        self._template = template = event_template(event, choice, choice if delta is None else delta)
        if template is not None and template.field in self._text_fields:
            text = event[len(template.head) : len(event) - len(template.tail)]
            self._write_texts(template.field, [text], out)
        else:
            self._template = None
            self._write_choice(choice, delta, out)

    def _note(self, chunk: Mapping[str, Any]) -> None:
        """Read what an event that is parsed says beside its choices."""
        return

    @abstractmethod
    def _write_texts(self, field: str, pieces: Sequence[bytes], out: list[bytes]) -> None:
        """Write pieces of a text, which are escaped as in JSON. Some may be empty."""

    @abstractmethod
    def _write_choice(self, choice: dict[str, Any], delta: dict[str, Any] | None, out: list[bytes]) -> None:
        """Write what an event without such a text says. `delta` is a chat's (None: it has none)."""


def texts_of(content: Any) -> tuple[str, str]:
    """The text and the reasoning of a message's or delta's content. Some engines answer in parts (Mistral's API sends reasoning
    so)."""
    if isinstance(content, str):
        return content, ""
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    text = "".join(said for part in parts if isinstance(said := part.get("text"), str))
    thoughts = [texts_of(part["thinking"])[0] for part in parts if "thinking" in part]
    return text, "".join(thoughts)


#: Where engines put a model's reasoning, the newer name first.
THINKING = ("reasoning", "reasoning_content")


def said_in(said: Mapping[str, Any]) -> tuple[str, str]:
    """The text and the reasoning of a message or a delta."""
    content, thoughts = texts_of(said.get("content"))
    return content, next((text for name in THINKING if (text := texts_of(said.get(name))[0])), thoughts)


def listed(value: Any) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []
