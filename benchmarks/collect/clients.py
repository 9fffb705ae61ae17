"""One streamed request by the engine's own client library: `openai` (vLLM and its like) or `ollama`.

Libraries' errors become `Reply.error`; nothing is tried again, since a second try would hide the first one's
time. What is measured is what a user of that library sees.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2
import ollama
import openai
from openai.types.chat import ChatCompletionChunk

from backends.engine_numbers import token_count
from backends.http1 import hidden, secret_words
from router.core.types import Candidate, EndedHow

_CONNECT_S = 5.0
#: Shorter than servers keep an idle connection (uvicorn: 5 s), so that none is reused as it is closed.
_IDLE_CONNECTION_S = 2.0
_MESSAGE_CHARS = 200
#: How the libraries fail on an answer that is no JSON, or JSON of another shape: they look into it all the same.
_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


@dataclass(slots=True)
class Reply:
    """What came back, filled as it comes. Times are of `time.perf_counter`; `capped`: cut at `max_tokens`."""

    first_token_at: float | None = None
    ended_at: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    pieces: list[str] = field(default_factory=list)
    events: int = 0
    ended_how: EndedHow = EndedHow.CANCELLED
    error: str | None = None

    @property
    def capped(self) -> bool:
        return self.finish_reason == "length"

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def take(self, piece: str | None, thought: str | None = None) -> None:
        """A piece of the answer, or of what the model thought first: either is a token for who waits."""
        if piece or thought:
            self.events += 1
            if self.first_token_at is None:
                self.first_token_at = time.perf_counter()
            if piece:
                self.pieces.append(str(piece))

    def take_usage(self, prompt_tokens: Any, output_tokens: Any) -> None:
        """The engine's own counts, where they are counts."""
        self.prompt_tokens = token_count(prompt_tokens) or self.prompt_tokens
        output_tokens = token_count(output_tokens)
        if output_tokens is not None:
            self.output_tokens = output_tokens

    def end(self, error: Exception | None = None, secrets: Sequence[str] = ()) -> None:
        """The stream is over. One without a finish reason broke off, even if the library raised nothing. `secrets` are hidden in
        the error's words."""
        self.ended_at = time.perf_counter()
        if error is None and self.finish_reason is not None:
            self.ended_how = EndedHow.OK
            if self.output_tokens is None and self.events:
                self.output_tokens = self.events  # no usage: the events stand in for tokens
        else:
            self.ended_how = EndedHow.FAILED
            self.error = "the stream broke off" if error is None else _message(error, secrets)


def _message(error: Exception, secrets: Sequence[str]) -> str:
    if isinstance(error, _MALFORMED):
        return "the answer is not of the engine's format"
    line = hidden(" ".join(str(error).split()), secrets) or type(error).__name__
    return line if len(line) <= _MESSAGE_CHARS else f"{line[: _MESSAGE_CHARS - 3]}..."


# Both send one request by `ask` and fill its reply; they raise nothing that the engine or the network does.
class OpenAIClient:
    """`openai.AsyncOpenAI`. `bound` is the field that bounds the answer: vLLM and older servers know
    `max_tokens`, OpenAI's own newer models only `max_completion_tokens`. An emulated vLLM also gets `output_tokens`."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        headers: Mapping[str, str],
        tls: ssl.SSLContext | None,
        bound: str = "max_tokens",
    ) -> None:
        # Engines are reached as the gateway reaches them: by no proxy that the environment names.
        http = openai.DefaultAsyncHttpxClient(
            verify=tls if tls is not None else True,
            trust_env=False,
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE_CONNECTION_S),
        )
        self._client = openai.AsyncOpenAI(
            base_url=f"{url.rstrip('/').removesuffix('/v1')}/v1",
            api_key=api_key or "none",
            default_headers=headers,
            max_retries=0,
            timeout=None,
            http_client=http,
        )
        self._bound = bound
        self._secrets = secret_words([api_key or "", *headers.values()])

    async def ask(
        self, candidate: Candidate, prompt: str, max_tokens: int, reply: Reply, output_tokens: int | None
    ) -> None:
        more: dict[str, Any] = {self._bound: max_tokens}
        if output_tokens is not None:
            more["vllm_xargs"] = {"emulate_output_tokens": output_tokens}
        try:
            stream = await self._client.chat.completions.create(
                model=candidate.upstream_model,
                messages=[{"role": "user", "content": prompt}],
                stream=True,
                stream_options={"include_usage": True},
                extra_body=more,
            )
            async with stream:
                async for chunk in stream:
                    _take_chunk(chunk, reply)
        except (openai.OpenAIError, httpx2.HTTPError, *_MALFORMED) as error:
            reply.end(error, self._secrets)
        else:
            reply.end()

    async def aclose(self) -> None:
        await self._client.close()


def _take_chunk(chunk: ChatCompletionChunk, reply: Reply) -> None:
    if chunk.usage is not None:
        reply.take_usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
    for choice in chunk.choices or ():
        if choice.finish_reason is not None:
            reply.finish_reason = choice.finish_reason
        delta = choice.delta
        if delta is not None:
            # Not OpenAI's own fields: vLLM calls it `reasoning`, formerly and elsewhere `reasoning_content`.
            thought = getattr(delta, "reasoning", None) or getattr(delta, "reasoning_content", None)
            reply.take(delta.content, thought)


class OllamaClient:
    """`ollama.AsyncClient`."""

    def __init__(
        self, url: str, api_key: str | None, headers: Mapping[str, str], tls: ssl.SSLContext | None
    ) -> None:
        bearer = {"authorization": f"Bearer {api_key}"} if api_key is not None else {}
        self._client = ollama.AsyncClient(
            host=url,
            headers={**headers, **bearer},
            verify=tls if tls is not None else True,
            trust_env=False,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_CONNECTION_S),
        )
        self._secrets = secret_words([api_key or "", *headers.values()])

    async def ask(
        self, candidate: Candidate, prompt: str, max_tokens: int, reply: Reply, output_tokens: int | None
    ) -> None:
        del output_tokens  # Ollama's API has no place for it
        options: dict[str, Any] = {"num_predict": max_tokens}
        if candidate.context_tokens is not None:
            options["num_ctx"] = candidate.context_tokens
        try:
            async for part in await self._client.chat(
                model=candidate.upstream_model,
                messages=[{"role": "user", "content": prompt}],
                stream=True,
                options=options,
            ):
                reply.take(part.message.content, part.message.thinking)
                if part.done:
                    reply.take_usage(part.prompt_eval_count, part.eval_count)
                    reply.finish_reason = part.done_reason or "stop"
        except (ollama.ResponseError, httpx.HTTPError, ConnectionError, *_MALFORMED) as error:
            reply.end(error, self._secrets)
        else:
            reply.end()

    async def aclose(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]


Client = OpenAIClient | OllamaClient
