"""One request over HTTP: the body, the streamed answer, the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from backends.engine_numbers import token_count
from benchmarks.checks import json_object
from benchmarks.replay.row import Row
from benchmarks.replay.stream import StreamMeter
from benchmarks.replay.wire import Wire
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.text import prompt_text

_MESSAGE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how requests are sent. `speed` compresses time: gaps and SLOs are divided by it, measured
    times multiplied. `salt` changes made-up prompts (see `workloads.text`). `slo` is for requests that have
    none, `policy` replaces the workload's own."""

    url: str
    model: str = "auto"
    policy: str | None = None
    slo: Mapping[str, float] | None = None
    speed: float = 1.0
    api_key: str | None = field(default=None, repr=False)
    emulate_lengths: bool = False
    timeout_s: float = 600.0
    new_connections: bool = False
    seed: int | None = None
    salt: str = ""

    @property
    def chat_url(self) -> str:
        return self.base_url + "/v1/chat/completions"

    @property
    def base_url(self) -> str:
        """Scheme, host and port, with whatever path stands before `/v1`."""
        return self.url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers


def check_url(url: str, option: str = "--url") -> None:
    """A WorkloadError naming the option unless `url` is an http address."""
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong:
        raise WorkloadError(f"{option} {url}: expected http://HOST[:PORT]")


def key_from(environment: Mapping[str, str], variable: str | None, option: str) -> str | None:
    """The key in an environment variable that an option names, None without one; a WorkloadError where it is not set, or has
    what no header can have."""
    if variable is None:
        return None
    key = environment.get(variable)
    if not key:
        raise WorkloadError(f"{option} {variable}: that variable is not set")
    if not key.isascii() or not key.isprintable():
        raise WorkloadError(
            f"{option} {variable}: its key has a line break, or a character that is not ASCII"
        )
    return key


def wire_for(target: Target) -> Wire:
    return Wire(target.chat_url, target.headers, timeout_s=target.timeout_s, reuse=not target.new_connections)


def slo_of(request: WorkloadRequest, target: Target) -> dict[str, float] | None:
    """The targets that hold for a request, in milliseconds of the workload's clock."""
    own = (request.routing or {}).get("slo")
    if own:
        return dict(own)
    return dict(target.slo) if target.slo else None


def body_of(request: WorkloadRequest, target: Target) -> bytes:
    """The chat request, as JSON. `routing` is there only if something is wished for."""
    routing: dict[str, Any] = dict(request.routing or {})
    if target.policy is not None:
        routing["policy"] = target.policy
    slo = slo_of(request, target)
    if slo is not None:
        routing["slo"] = {name: value / target.speed for name, value in slo.items()}
    body: dict[str, Any] = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt_text(request, target.seed, target.salt)}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    if request.session is not None:
        body["prompt_cache_key"] = request.session
    if routing:
        body["routing"] = routing
    if target.emulate_lengths and request.output_tokens:
        body["vllm_xargs"] = {"emulate_output_tokens": request.output_tokens}
    return orjson.dumps(body)


async def send(wire: Wire, target: Target, row: Row, body: bytes, scheduled_at: float) -> None:
    """Send one request and fill `row`. `scheduled_at` is on `time.perf_counter`. Never raises for what the
    other side does."""
    meter = StreamMeter()
    answer = await wire.post(body, row.id, meter)
    row.status = answer.status
    row.headers = answer.headers
    row.error = answer.error
    plain = None
    if answer.error is None and not answer.streamed:
        plain = json_object(answer.data)
        if answer.status != 200:
            _take_error(row, plain, answer.data)
    meter.finish()
    _fill(row, meter, plain, scheduled_at, answer.ended_at, target.speed)
    row.judge()


def _fill(
    row: Row,
    meter: StreamMeter,
    plain: Mapping[str, Any] | None,
    scheduled_at: float,
    ended_at: float | None,
    speed: float,
) -> None:
    row.events = meter.events
    if meter.first_at is not None:
        row.ttft_s = (meter.first_at - scheduled_at) * speed
        gaps = meter.gaps_s()
        row.itl_p99_s = None if gaps.p99 is None else gaps.p99 * speed
        row.itl_max_s = None if gaps.max is None else gaps.max * speed
    usage, headway = meter.usage, meter.headway
    row.finish_reason = meter.finish_reason
    if plain is not None and row.status == 200:
        # An endpoint that does not stream: no first token to be seen.
        usage, headway = plain.get("usage"), plain.get("headway")
        choices = plain.get("choices")
        row.complete = isinstance(choices, list)
        reasons = [each.get("finish_reason") for each in choices or () if isinstance(each, dict)]
        row.finish_reason = next((str(reason) for reason in reasons if reason), None)
        if not row.complete:
            row.error = row.error or "the answer is neither a stream nor a completion"
    elif row.status == 200:
        if meter.error is not None:
            row.error = f"error event: {str(meter.error.get('message'))[:_MESSAGE_LIMIT]}"
            code = meter.error.get("code")
            row.error_code = None if code is None else str(code)
        elif row.error is not None or not meter.done:
            row.error = row.error or "the stream ended without [DONE]"
        else:
            row.complete = True
    if isinstance(usage, Mapping):
        row.prompt_tokens = token_count(usage.get("prompt_tokens"))
        row.output_tokens = token_count(usage.get("completion_tokens"))
    row.headway = dict(headway) if isinstance(headway, Mapping) else None
    tokens = row.output_tokens or row.events  # without usage the events stand in for tokens
    if ended_at is not None and row.complete:
        row.e2e_s = (ended_at - scheduled_at) * speed
        if row.ttft_s is not None and tokens > 1:
            row.tpot_s = (row.e2e_s - row.ttft_s) / (tokens - 1)
    if meter.first_at is not None and meter.last_at is not None and tokens > 1:
        row.itl_mean_s = (meter.last_at - meter.first_at) * speed / (tokens - 1)


def _take_error(row: Row, plain: Mapping[str, Any] | None, data: bytes) -> None:
    """OpenAI's error object, Ollama's or vLLM's plain text, or whatever else came."""
    error = (plain or {}).get("error")
    if isinstance(error, dict):
        row.error = str(error.get("message"))[:_MESSAGE_LIMIT]
        code = error.get("code")
        row.error_code = None if code is None else str(code)
    elif isinstance(error, str):
        row.error = error[:_MESSAGE_LIMIT]
    else:
        row.error = f"HTTP {row.status} ({len(data)} bytes)"
