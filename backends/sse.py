# cython: language_level=3, annotation_typing=False, nonecheck=True, auto_pickle=False
"""Turns the bytes of an OpenAI-shaped event stream into `Batch`es of whole events.

Reading is in three gears.

1. Events that are the last token's event but for their text: the bytes before and after the text are the
   same, so only they are compared. `EventFormat` tells them from earlier answers. So is an event that ends with its usage,
   which is parsed alone.
2. Others that are passed on: recognised as ordinary by counting. The engine writes `"finish_reason":null`
   into every ordinary event, and into no error, usage-only or `[DONE]` event, so as many of them as there
   are events means that nothing needs parsing.
3. An answer's first event, and whenever something special may be in a read: events are taken apart and
   parsed one by one.

Text inside JSON strings cannot imitate the marks because its quotes and line ends are escaped.

The outcome does not depend on how the bytes were cut into reads. Bytes that are not UTF-8 become U+FFFD first, as every reader
of event streams has them.

`backends.native` has this module compiled, with another `_run`; `backends.scanning` chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from backends.bounded_json import utf8
from backends.engine_errors import ABORT, from_event, stopped
from backends.several_choices import SeveralChoices
from router.core.errors import AnswerTooLarge, UpstreamError
from router.core.interfaces import Batch, Collector

from .engine_numbers import finish_reason as finish_reason_of
from .engine_numbers import sound_usage, token_count
from .sse_events import (
    DONE,
    NULL,
    EventFormat,
    carries_token,
    data_of,
    event_template,
    object_of,
    shared_head,
)

MAX_EVENT_BYTES = 1024 * 1024
_QUOTE = ord('"')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_NULL_FINISH = re.compile(rb'"finish_reason":( ?)null')
_STRING = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'  # possessive: it takes each byte once
_INSIDE = re.compile(_STRING)
_TEXT = re.compile(rb'"(?:delta": ?\{ ?"content|text)": ?"((?!")' + _STRING + rb')"')
_MODEL = re.compile(rb'"model"\s*+:\s*+"' + _STRING + rb'"')

#: A choice of which an event says nothing.
_NOTHING_MORE = {"index": 0, "delta": {}, "finish_reason": None}


class SseScanner:
    """Scans one answer. `model` is the fleet's name of the model, `choices` the number of the answer's choices: `n` for each of
    the `prompts`. `event_format` is what answers of the same engine and API share.

    With a `collector` the events go to it, and the batches have no data. `usage_collector` takes only the usage-only event, which
    is in no batch. `hides_usage`: the batches' data has no counts, as a client gets it that did not ask for them.

    After a `feed`, `done` says that the end mark came and `failure` holds an error that the engine
    reported after the events already returned; nothing that follows either is looked at.
    """

    __slots__ = (
        "_after",
        "_answered",
        "_before",
        "_collector",
        "_counted_after",
        "_counted_before",
        "_cut",
        "_early_bytes",
        "_edge",
        "_empty",
        "_ended",
        "_field",
        "_format",
        "_head",
        "_held",
        "_held_bytes",
        "_hides_usage",
        "_max_event_bytes",
        "_model",
        "_null_delta",
        "_null_finish",
        "_null_text",
        "_rename",
        "_renamed",
        "_seam",
        "_several",
        "_usage",
        "_usage_collector",
        "done",
        "failure",
        "started",
    )

    def __init__(
        self,
        model: str,
        *,
        choices: int = 1,
        prompts: int = 1,
        collector: Collector | None = None,
        usage_collector: Collector | None = None,
        hides_usage: bool = False,
        event_format: EventFormat | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self.done = False
        self.failure: UpstreamError | None = None
        self.started = False  # the first token was seen
        self._answered = False  # an event said something of a choice
        self._ended = False  # a choice has a finish reason
        self._model = model
        self._several = SeveralChoices(choices, prompts) if choices > 1 else None
        self._collector = collector
        self._usage_collector = usage_collector or collector
        self._hides_usage = hides_usage
        self._cut = False  # a choice ended at its bound; that tells more than how others ended
        self._max_event_bytes = max_event_bytes
        self._held: list[bytes] = []  # the bytes of an event that is not whole yet
        self._held_bytes = 0
        self._edge = b""  # the end of them: an end mark may be cut in two
        self._early_bytes = 0
        self._format = event_format or EventFormat()
        # The template of the events that may follow the last one that was parsed.
        self._field = ""
        #: What the events begin with that a collector got; of such an event only the rest is parsed.
        self._head = b""
        self._before = b""  # an event up to its text; empty if there is none
        self._after = b""  # and from the text's closing quote on, with the blank line
        self._seam = b""  # between two of its kind
        # Learned from an event with a token: how this engine writes its JSON.
        self._counted_before: bytes | None = None  # the same of an ordinary event that ends with its usage
        self._counted_after = b""  # up to the usage
        self._null_finish: bytes | None = None
        self._empty = b""
        self._null_text = b""
        self._null_delta = b""
        self._usage = b""
        self._rename: bytes | None = None  # the engine's member "model":"..." as it writes it
        self._renamed = b""

    @property
    def complete(self) -> bool:
        """Whether each choice that has begun has a finish reason."""
        return self.failure is None and self._ended and (self._several is None or self._several.have_ended)

    def feed(self, data: bytes) -> Batch | None:
        """Take what has arrived; the whole events in it, or None if there is nothing to pass on yet."""
        if self._held:
            data = self._join(data)
            if not data:
                return None
        if not data.isascii():
            data = utf8(data)
        tokens = at = 0
        if self._before:
            tokens, at = self._run(data, 0, len(data))
            if tokens and at == len(data):
                self.started = True
                return Batch(b"" if self._collector is not None else self._renamed_run(data), tokens)
        counted = self._counted_before
        if counted is not None and data.startswith(counted) and data.endswith(b"}}\n\n"):
            batch = self._take_counted(data)
            if batch is not None:
                return batch
        mark = self._null_finish
        if mark is not None and data.endswith(b"}\n\n"):
            count = data.count(b"\n\n")
            if (
                data.count(mark) == count
                and self._empty not in data
                and self._null_text not in data
                and self._usage not in data
                and self._null_delta not in data
            ):
                return Batch(self._renamed_run(data), count)
        return self._scan(data, at, tokens)

    def _take_counted(self, data: bytes) -> Batch | None:
        """One event that ends with its usage; None if it is another one."""
        before, after = self._counted_before, self._counted_after
        assert before is not None  # noqa: S101 (the caller saw it)
        start = len(before)
        quote = data.find(b'"', start)
        if quote <= start or not data.startswith(after, quote) or data.count(b"\n") != 2:
            return None
        try:
            usage = sound_usage(orjson.loads(data[quote + len(after) : -3]))
        except ValueError:
            return None
        if usage is None:
            return None
        return Batch(self._renamed_run(data), 1, usage, None)

    # --- the careful gear
    def _join(self, data: bytes) -> bytes:
        """Held bytes and new ones together, or b"" while no event in them is whole."""
        edge = self._edge + data[:3]
        if b"\n\n" in edge or b"\n\n" in data or b"\n\r\n" in edge or b"\n\r\n" in data:
            self._held.append(data)
            joined = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            return joined
        self._hold(data)
        self._check_size()
        return b""

    def _hold(self, data: bytes) -> None:
        if data:
            self._edge = ((self._edge if self._held else b"") + data)[-3:]
            self._held.append(data)
            self._held_bytes += len(data)

    def _check_size(self) -> None:
        if self._held_bytes > self._max_event_bytes:
            self.failure = AnswerTooLarge("the engine sent an event that is too large")
            self._held.clear()
            self._held_bytes = 0

    def _scan(self, data: bytes, at: int, tokens: int) -> Batch | None:
        """Take the events from `at` on; before it are so many `tokens`, each an event of the template."""
        if b"\r" in data:  # JSON text escapes control characters, so these are line ends
            rest = data[-1:] if data.endswith(b"\r") else b""
            data = data[: len(data) - len(rest)].replace(b"\r\n", b"\n")
        else:
            rest = b""
        stop = data.rfind(b"\n\n") + 2  # of the last whole event
        if stop < 2:
            self._hold(data + rest)
            self._check_size()
            return None
        self._hold(data[stop:] + rest)
        self._check_size()
        out: list[bytes] = []
        if tokens:
            self.started = True
            if self._collector is None:
                out.append(self._renamed_run(data[: at - 2]))
        usage: Mapping[str, Any] | None = None
        finish_reason: str | None = None
        failure, self.failure = self.failure, None
        while at < stop - 1:  # a single line end may be left of blank lines
            if self._before:
                count, end = self._run(data, at, stop)
                if count:
                    self.started = True
                    if self._collector is None:
                        out.append(self._renamed_run(data[at : end - 2]))
                    tokens += count
                    at = end
                    continue
            event = self._event(data, at, stop)
            at += len(event) + 2
            if not event:
                continue  # an engine may send 100000 blank lines in a read
            text: bytes | None
            head, one_line = self._head, b"\n" not in event
            known = one_line and head != b"" and event.startswith(head)
            if known:
                text = b"{" + event[len(head) :]
            elif one_line and event.startswith(b"data: {"):
                text = event[6:]
            else:
                event = event.removeprefix(_BYTE_ORDER_MARK)  # a stream may begin with one
                text = data_of(event)
            if not text or text == NULL:
                continue  # a comment or an event without data, which keeps the connection alive, or blank lines
            if text == DONE:
                if self._answered:
                    self.done = True
                else:
                    self.failure = UpstreamError("the engine's answer is empty")
                break
            try:
                payload = object_of(text)
            except UpstreamError as error:
                self.failure = error
                break
            if payload.get("error"):
                self.failure = from_event(payload, started=self.started)
                break
            choices = payload.get("choices")
            counts = _usage_of(payload) if "usage" in payload or "timings" in payload else None
            if counts is not None:
                if self._several is not None and "timings" in payload:
                    usage = self._several.usage(counts, last="usage" in payload) or usage
                else:
                    usage = counts
            # The usage-only event that the router asked for; its counts may be impossible.
            if not choices and (counts is not None or payload.get("usage") is not None):
                self._take_usage_only(payload, len(event), out)
                continue
            is_token = False
            if isinstance(choices, list):
                for choice in choices:
                    if isinstance(choice, dict):
                        self._answered = True
                        is_token = is_token or carries_token(choice)
                        reason = choice.get("finish_reason")
                        if isinstance(reason, str):
                            self._ended = True
                            self._cut |= reason == "length"
                            finish_reason = "length" if self._cut else finish_reason_of(reason)
                        if self._several is not None:
                            self._several.take(choice.get("index"), ends=isinstance(reason, str))
            if finish_reason == ABORT:
                self.failure = stopped()
                break
            if self._collector is None:
                written = self._renamed_event(event, payload)  # also learns how the engine writes the name
                if counts is not None and self._hides_usage and payload.pop("usage", None) is not None:
                    payload["model"] = self._model
                    written = b"data: " + orjson.dumps(payload)
                out.append(written)
            else:
                self._collector.take_event(payload, len(event))
            if not self.started:  # all of it is held back until the first token
                self._early_bytes += len(event)
                if self._early_bytes > self._max_event_bytes:
                    self.failure = AnswerTooLarge("the engine sent too much before its first token")
                    break
            if is_token:
                tokens += 1
                # Of a stream with timings each event is parsed, for its counts.
                if self._collector is None and "timings" not in payload:
                    self._learn(event)
                self.started = True
            self._before = b""
            if not known:
                head = shared_head(event)
                if self._collector is not None:
                    self._head = head
            if (
                finish_reason is None
                and self._several is None
                and isinstance(choices, list)
                and len(choices) == 1
            ):
                self._learn_template(event, head, payload, choices[0], is_token and counts is None)
        if self.failure is None and not self.done:
            self.failure = failure
        if out:
            out.append(b"")
            return Batch(b"\n\n".join(out), tokens, usage, finish_reason)
        if self._collector is not None and tokens:
            return Batch(b"", tokens, usage, finish_reason)
        return Batch(b"", 0, usage, finish_reason) if usage is not None or finish_reason is not None else None

    def _take_usage_only(self, payload: dict[str, Any], size: int, out: list[bytes]) -> None:
        """An event with counts and without a choice. Only llama-server's timings are passed on (to `out`)."""
        if self._usage_collector is not None:  # it may have more members, such as `service_tier`
            self._usage_collector.take_event(payload, size)
        elif "timings" in payload and payload.get("object") == "chat.completion.chunk":
            # llama-server puts them into the last event of every stream: into this one because the router asked for it. A
            # client that did not ask takes the first choice of each event.
            payload.pop("usage", None)
            payload["model"], payload["choices"] = self._model, [_NOTHING_MORE]
            out.append(b"data: " + orjson.dumps(payload))

    def _event(self, data: bytes, at: int, stop: int) -> bytes:
        """The whole event that begins at `at`, without the blank line after it."""
        return data[at : data.find(b"\n\n", at, stop)]

    def _run(self, data: bytes, at: int, stop: int) -> tuple[int, int]:
        """How many events from `at` on have the template, and where they end: the bulk of an answer that came in one read."""
        if not data.startswith(self._before, at):
            return 0, at
        after, seam = self._after, self._seam
        start = at + len(self._before)
        texts: list[bytes] = []
        while (quote := _text_end(data, start, stop)) >= 0:
            if data.startswith(seam, quote):
                texts.append(data[start:quote])
                start = quote + len(seam)
                at = start - len(self._before)
                continue
            if data.startswith(after, quote):
                texts.append(data[start:quote])
                at = quote + len(after)
            break
        if self._collector is not None and texts:
            self._collector.take_texts(self._field, b"".join(texts))
        return len(texts), at

    def _renamed_run(self, data: bytes) -> bytes:
        return data if self._rename is None else data.replace(self._rename, self._renamed)

    def _learn(self, event: bytes) -> None:
        """How the engine spaces its JSON, from an event with a token. Several choices may share one event,
        and then counting marks says nothing: such answers stay in the careful gear."""
        found = _NULL_FINISH.search(event)
        if found is None or self._several is not None:
            return
        space = found.group(1)
        self._null_finish = found.group(0)
        self._empty = b'":' + space + b'""'
        self._null_text = b'"content":' + space + b"null"
        self._null_delta = b'"delta":' + space + b"{}"
        self._usage = b'"usage":' + space + b"{"
        if self._usage in event and event.endswith(b"}}") and not self._hides_usage and b"\n" not in event:
            text = _TEXT.search(event)
            if text is not None:
                self._counted_before = event[: text.start(1)]
                self._counted_after = event[text.end(1) : event.rfind(self._usage) + len(self._usage) - 1]

    def _learn_template(
        self, event: bytes, head: bytes, payload: dict[str, Any], choice: Any, is_token: bool
    ) -> None:
        """How the events are written that follow this one and have a text only. `choice` is its only one."""
        if b"\n" in event or not isinstance(choice, dict):
            return
        event += b"\n\n"
        template = self._format.template(event, head, choice.get("index"), is_token)
        if template is None and is_token:
            texts = choice if payload.get("object") == "text_completion" else choice.get("delta")
            template = event_template(event, choice, texts) if isinstance(texts, dict) else None
            if template is not None:
                self._format.learn(template)
        if template is not None:
            self._field, self._before, self._after, self._seam = template

    def _renamed_event(self, event: bytes, payload: dict[str, Any]) -> bytes:
        name = payload.get("model")
        if not isinstance(name, str) or name == self._model:
            return event
        if self._rename is None or self._rename not in event:
            found = _MODEL.search(event)
            if found is None:
                return event
            self._rename = found.group(0)
            self._renamed = b'"model":' + orjson.dumps(self._model)
            # What was learned holds for events that are written as this one is.
            self._before, self._counted_before, self._null_finish = b"", None, None
        return event.replace(self._rename, self._renamed)


def _text_end(data: bytes, start: int, stop: int) -> int:
    """Where the JSON text that begins at `start` has its closing quote; -1 if there is none before `stop`, if the text is empty or
    if a line ends in it."""
    inside = _INSIDE.match(data, start, stop)
    quote = start if inside is None else inside.end()
    whole = start < quote < stop and data[quote] == _QUOTE and data.find(b"\n", start, quote) < 0
    return quote if whole else -1


def _usage_of(payload: dict[str, Any]) -> Mapping[str, Any] | None:
    """Token counts of an event: `usage` unless it is all zero (Ollama writes that into every event of a
    completion), or llama-server's `timings`."""
    usage = payload.get("usage")
    if usage is not None and (sound := sound_usage(usage)) is not None:
        return sound
    timings = payload.get("timings")
    if isinstance(timings, dict):
        made, new, cached = (
            token_count(timings.get(name)) for name in ("predicted_n", "prompt_n", "cache_n")
        )
        if made is not None and new is not None:
            prompt = new + (cached or 0)
            return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
    return None
