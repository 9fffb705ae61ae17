"""Turns Ollama's JSON lines into OpenAI's events.

Every line has to be parsed, since its shape changes; the events are put together from ready-made pieces.
Reasoning goes under `reasoning`, the field that vLLM uses (it renamed `reasoning_content`).
"""

from __future__ import annotations

from typing import Any

import orjson

from backends.bounded_json import TooComplex, loads_event
from backends.engine_errors import from_event
from backends.ollama_bodies import finish_reason_of, logprobs_of, tool_calls_of, usage_of
from router.core.errors import AnswerTooLarge, UpstreamError
from router.core.interfaces import Batch, Call

MAX_LINE_BYTES = 1024 * 1024


class NdjsonScanner:
    """Scans one answer of /api/chat or /api/generate. `created` is the wall clock in whole seconds.

    After a `feed`, `done` says that the line with `done: true` came, `failure` holds an error that the
    engine reported after the events already returned.
    """

    __slots__ = (
        "_api",
        "_held",
        "_held_bytes",
        "_prefix",
        "_request_id",
        "_role",
        "_tool_calls",
        "done",
        "failure",
        "started",
    )

    def __init__(self, call: Call, created: int) -> None:
        self.done = False
        self.failure: UpstreamError | None = None
        self.started = False
        chat = call.api == "chat"
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{call.request_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": call.candidate.model,
        }
        self._prefix = b"data: " + orjson.dumps(head)[:-1] + b',"choices":[{"index":0,'
        self._api = call.api
        self._request_id = call.request_id
        self._role = b'"role":"assistant",' if chat else b""  # once
        self._tool_calls = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether the answer has its end."""
        return self.done

    def feed(self, data: bytes) -> Batch | None:
        """Take what has arrived; the events of the whole lines in it, or None if there are none yet."""
        cut = data.rfind(b"\n")
        if cut < 0:
            self._hold(data)
            return None
        whole = data[:cut]
        if self._held:
            self._held.append(whole)
            whole = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
        self._hold(data[cut + 1 :])
        too_large, self.failure = self.failure, None
        out: list[bytes] = []
        tokens = 0
        usage: dict[str, int] | None = None
        finish_reason: str | None = None
        for text in whole.split(b"\n"):
            if not text or text.isspace():
                continue
            try:
                line = loads_event(text)
            except TooComplex:
                self.failure = AnswerTooLarge("the engine sent a line of too many parts")
                break
            except ValueError:
                line = None
            if not isinstance(line, dict):
                self.failure = UpstreamError("the engine sent a line that is not a JSON object")
                break
            if "error" in line:
                self.failure = from_event(line, started=self.started)
                break
            delta = self._delta(line)
            if delta:
                tokens += 1
                self.started = True
                out.append(self._event(delta, line, b"null"))
            if line.get("done") is True:
                finish_reason = finish_reason_of(line, self._tool_calls > 0)
                usage = usage_of(line)
                empty = b'"delta":{' + self._take_role()[:-1] + b"}" if self._api == "chat" else b'"text":""'
                out.append(self._event(empty, {}, orjson.dumps(finish_reason)))
                self.done = True
                break
        if self.failure is None and not self.done:
            self.failure = too_large
        return Batch(b"".join(out), tokens, usage, finish_reason) if out else None

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes > MAX_LINE_BYTES:
                self.failure = AnswerTooLarge("the engine sent a line that is too large")
                self._held.clear()

    def _take_role(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _delta(self, line: dict[str, Any]) -> bytes:
        """The `delta` or `text` member of a line with a token, else b""."""
        if self._api != "chat":
            text = line.get("response")
            thinking = line.get("thinking")
            if isinstance(thinking, str) and thinking:
                return b'"text":' + orjson.dumps(text or "") + b',"reasoning":' + orjson.dumps(thinking)
            return b'"text":' + orjson.dumps(text) if text else b""
        message = line.get("message")
        if not isinstance(message, dict):
            return b""
        members: list[bytes] = []
        thinking, content, calls = (message.get(name) for name in ("thinking", "content", "tool_calls"))
        if thinking:
            members.append(b'"reasoning":' + orjson.dumps(thinking))
        if content:
            members.append(b'"content":' + orjson.dumps(content))
        if isinstance(calls, list) and calls:
            ours = tool_calls_of(calls, self._request_id, self._tool_calls)
            self._tool_calls += len(ours)
            if ours:
                members.append(b'"tool_calls":' + orjson.dumps(ours))
        if not members:
            return b""
        return b'"delta":{' + self._take_role() + b",".join(members) + b"}"

    def _event(self, delta: bytes, line: dict[str, Any], finish_reason: bytes) -> bytes:
        tokens = line.get("logprobs")
        logprobs = orjson.dumps(logprobs_of(tokens, self._api)) if isinstance(tokens, list) else b"null"
        return b'%b%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (
            self._prefix,
            delta,
            logprobs,
            finish_reason,
        )
