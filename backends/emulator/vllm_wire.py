"""vLLM's bytes: chunks, non-streaming answers and errors of /v1/chat/completions, /v1/completions and
/v1/embeddings.

The order and presence of fields follow vLLM's own models (chat chunks omit fields that were not set; completion chunks
have every field, `"usage": null` too).
"""

from __future__ import annotations

import time
import uuid
from functools import lru_cache
from itertools import accumulate
from typing import Any

import orjson

from backends.emulator.generation import Choice, Generation, Wire
from backends.emulator.text import base64_floats, embedding, seed_of
from backends.emulator.vllm_request import Job
from backends.sse_events import END, event

FINGERPRINT = "headway-emulator"


def error_json(status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """vLLM's error object."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


def error_kind(status: int) -> str:
    return {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}.get(
        status, "InternalServerError"
    )


def _logprob(seed: int, index: int) -> float:
    return -round(((seed + index * 2654435761) % 1000) / 2000, 4)


def token_logprobs(
    choice: Choice, start: int, stop: int, seed: int, alternatives: int
) -> list[dict[str, Any]]:
    """Log probabilities of an answer's tokens in OpenAI's form for chats. The numbers are made up from the position."""

    def entry(token: str, prob: float) -> dict[str, Any]:
        return {"token": token, "logprob": prob, "bytes": list(token.encode())}

    found = []
    for index in range(start, stop):
        token, prob = choice.answer.piece(index), _logprob(seed, index)
        others = [entry(token if rank == 0 else f" alt{rank}", prob - rank) for rank in range(alternatives)]
        found.append({**entry(token, prob), "top_logprobs": others})
    return found


class VllmWire(Wire):
    """One request's answer in vLLM's format."""

    content_type = "text/event-stream; charset=utf-8"
    head_first = True

    def __init__(self, job: Job, model: str, answer_id: str) -> None:
        self._job = job
        self._model = model
        self._id = answer_id
        self._created = int(time.time())
        self._plain = job.logprobs is None and not job.continuous_usage and not job.echo
        self._tool_id = f"chatcmpl-tool-{seed_of(answer_id):016x}"

    def prepare(self, choice: Choice) -> None:
        mark = "\0"
        head, _, tail = self._event(choice, mark, False, 0, 0).partition(orjson.dumps(mark)[1:-1])
        choice.head, choice.tail = head, tail

    def opening(self) -> bytes:
        job = self._job
        if not job.chat:
            return b""
        data = b"".join(self._opening({"role": "assistant", "content": ""}, index) for index in range(job.n))
        if job.tool is not None:
            function = {"name": job.tool["name"]}
            for index in range(job.n):
                call = {
                    "id": f"{self._tool_id}-{index}",
                    "type": "function",
                    "index": 0,
                    "function": function,
                }
                data += self._opening({"content": None, "tool_calls": [call]}, index)
        return data

    def _opening(self, delta: dict[str, Any], index: int) -> bytes:
        chunk = self._envelope([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
        if self._job.continuous_usage:
            chunk["usage"] = self._usage(0)
        return _sse(chunk)

    def pieces(self, choice: Choice, start: int, stop: int, last: bool) -> bytes:
        if self._plain and not last:
            return choice.head + choice.answer.escaped(start, stop) + choice.tail
        return self._event(choice, self._text(choice, start, stop), last, start, stop)

    def closing(self, generation: Generation) -> bytes:
        if not self._job.include_usage:
            return END
        chunk = self._envelope([])
        chunk["usage"] = self._usage(sum(choice.sent for choice in generation.choices))
        chunk["system_fingerprint"] = FINGERPRINT
        return _sse(chunk) + END

    def whole(self, generation: Generation) -> bytes:
        job = self._job
        output = sum(choice.produced for choice in generation.choices)
        return orjson.dumps(
            {
                **self._envelope([self._whole_choice(choice) for choice in generation.choices]),
                "object": "chat.completion" if job.chat else "text_completion",
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": {**self._usage(output), "prompt_tokens_details": None},
                **({"prompt_logprobs": self._prompt_logprobs()} if job.chat else {}),
                "kv_transfer_params": None,
            }
        )

    def stream_error(self, status: int, message: str) -> bytes:
        return event(error_json(status, message, error_kind(status))) + END

    def error_body(self, status: int, message: str) -> bytes:
        return error_json(status, message, error_kind(status))

    # --- parts ---
    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        text = self._text(choice, 0, choice.produced)
        common = {
            "logprobs": self._logprobs(choice, 0, choice.produced),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
        }
        if not self._job.chat:
            return {
                "index": choice.index,
                "text": text,
                **common,
                "prompt_logprobs": self._prompt_logprobs(),
                "prompt_token_ids": None,
            }
        unset = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message: dict[str, Any] = {"role": "assistant", "content": text, **unset}
        if self._job.tool is not None:
            message["content"] = ""
            message["tool_calls"] = [
                {
                    "id": f"{self._tool_id}-{choice.index}",
                    "type": "function",
                    "function": {"name": self._job.tool["name"], "arguments": text},
                }
            ]
        return {"index": choice.index, "message": message, **common}

    def _event(self, choice: Choice, text: str, last: bool, start: int, stop: int) -> bytes:
        job = self._job
        logprobs = self._logprobs(choice, start, stop)
        if not job.chat:
            chunk = self._envelope(
                [
                    {
                        "index": choice.index,
                        "text": text,
                        "logprobs": logprobs,
                        "finish_reason": choice.finish_reason if last else None,
                        "stop_reason": choice.stop_reason if last else None,
                        "prompt_token_ids": None,
                        "token_ids": None,
                    }
                ]
            )
            chunk["usage"] = self._usage(stop) if job.continuous_usage else None
            return _sse(chunk)
        delta: dict[str, Any] = {"content": text}
        if job.tool is not None:
            delta = {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        part: dict[str, Any] = {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason if last else None,
        }
        if last:
            part["stop_reason"] = choice.stop_reason
        part["token_ids"] = None
        chunk = self._envelope([part])
        if last and not job.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        if job.continuous_usage:
            chunk["usage"] = self._usage(stop)
        return _sse(chunk)

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion.chunk" if self._job.chat else "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        prompt = self._job.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output_tokens,
            "completion_tokens": output_tokens,
        }

    def _text(self, choice: Choice, start: int, stop: int) -> str:
        """The answer's text, with `echo` after the prompt's."""
        job, text = self._job, choice.answer.raw(start, stop)
        if start or not job.echo:
            return text
        prompt = job.prompts[choice.index // job.n].data.decode("utf-8", "replace")
        return prompt if job.scores else prompt + text

    def _logprobs(self, choice: Choice, start: int, stop: int) -> dict[str, Any] | None:
        """Log probabilities of the right shape; the numbers are made up from the position."""
        count = self._job.logprobs
        if count is None or start == stop:
            return None
        seed = seed_of(self._id)
        if not self._job.chat:
            tokens = [choice.answer.piece(index) for index in range(start, stop)]
            probs = [_logprob(seed, index) for index in range(start, stop)]
            lengths = map(len, tokens[:-1])
            return {
                "text_offset": list(accumulate(lengths, initial=len(choice.answer.raw(0, start)))),
                "token_logprobs": probs,
                "tokens": tokens,
                "top_logprobs": [
                    {token: prob, **{f" alt{rank}": prob - rank for rank in range(1, count)}}
                    for token, prob in zip(tokens, probs, strict=True)
                ],
            }
        return {"content": token_logprobs(choice, start, stop, seed, count)}

    def _prompt_logprobs(self) -> list[dict[str, Any] | None] | None:
        if self._job.prompt_logprobs is None:
            return None
        prompt = self._job.prompts[0]
        pieces = [prompt.data[index * 4 : index * 4 + 4] for index in range(prompt.tokens)]

        def entry(index: int, piece: bytes) -> dict[str, Any]:
            text = piece.decode("utf-8", "replace")
            return {str(token_id(piece)): {"logprob": _logprob(17, index), "rank": 1, "decoded_token": text}}

        return [None, *(entry(index, piece) for index, piece in enumerate(pieces) if index)]


@lru_cache(10_000)
def token_id(piece: bytes) -> int:
    """The id of a prompt token (four bytes of text): its first 17 bits by hash, as a vocabulary of 131072."""
    return seed_of(piece) & 0x1FFFF


def token_ids(data: bytes) -> list[int]:
    return [token_id(data[at : at + 4]) for at in range(0, max(1, len(data)), 4)]


def _sse(chunk: dict[str, Any]) -> bytes:
    return event(orjson.dumps(chunk))


class VllmEmbeddingWire(VllmWire):
    """The answer of /v1/embeddings; never streamed."""

    def __init__(self, job: Job, model: str, dimensions: int, form: str) -> None:
        super().__init__(job, model, f"embd-{uuid.uuid4().hex}")
        self._dimensions = dimensions
        self._form = form

    def whole(self, generation: Generation) -> bytes:
        vectors = [embedding(prompt.data, self._dimensions, self._model) for prompt in self._job.prompts]
        tokens = self._job.prompt_tokens
        return orjson.dumps(
            {
                "id": self._id,
                "object": "list",
                "created": self._created,
                "model": self._model,
                "data": [
                    {
                        "index": index,
                        "object": "embedding",
                        "embedding": base64_floats(vector) if self._form == "base64" else vector,
                    }
                    for index, vector in enumerate(vectors)
                ],
                "usage": {
                    "prompt_tokens": tokens,
                    "total_tokens": tokens,
                    "completion_tokens": 0,
                    "prompt_tokens_details": None,
                },
            }
        )
