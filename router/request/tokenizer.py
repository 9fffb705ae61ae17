"""Counts prompt tokens with a `tokenizer.json` that the fleet file names (extra `tokenizers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from router.request.prompt import IMAGE_TOKENS, PromptFacts, prompt_texts

#: Longer texts are counted in a thread, so that other requests do not wait.
_IN_THREAD_CHARS = 8_000
#: Longer texts are not counted, which would take half a second or more: the estimate and its bound are used.
_MAX_COUNTED_CHARS = 2_000_000
#: Threads that count at the same time, and the longest wait for one; after it the estimate is used.
_THREADS, _PATIENCE_S = 2, 1.0
#: Tokens that a chat template usually adds to a message.
_USUAL_PER_MESSAGE = 5


class PromptTokenizer:
    """Counts a prompt's tokens. The chat template is not applied: its tokens are estimated and bounded."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._threads = asyncio.Semaphore(_THREADS)

    @classmethod
    def from_file(cls, path: str) -> Self:
        """Load a tokenizer.json. Raises ModuleNotFoundError without the extra, ValueError for a bad file."""
        from tokenizers import Tokenizer

        try:
            return cls(Tokenizer.from_file(path))
        except Exception as error:  # the library raises bare Exception for every bad file
            raise ValueError(f"{path} cannot be read as a tokenizer") from error

    async def count(self, api: str, body: Mapping[str, Any], facts: PromptFacts) -> tuple[int, int]:
        """Tokens of a checked body with these facts: the best estimate and an upper bound."""
        texts = prompt_texts(api, body)
        if not texts:
            return facts.tokens, facts.tokens_bound
        suffix = body.get("suffix") if api == "completions" else None
        counted = [each for text in texts for each in (text, suffix)] if suffix else texts
        tokens = await self._counted(counted)
        if tokens is None:
            return facts.tokens, facts.tokens_bound
        usual = _USUAL_PER_MESSAGE * len(body["messages"]) if api == "chat" else len(texts)
        return (
            tokens + usual + facts.media * IMAGE_TOKENS,
            tokens + max(0, facts.tokens_bound - facts.text_bytes),
        )

    async def _counted(self, texts: list[str]) -> int | None:
        chars = sum(map(len, texts))
        if chars <= _IN_THREAD_CHARS:
            return self._count(texts)
        if chars > _MAX_COUNTED_CHARS:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._threads.acquire()
        except TimeoutError:
            return None
        counting = asyncio.get_running_loop().run_in_executor(None, self._count, texts)
        counting.add_done_callback(lambda _: self._threads.release())
        return await asyncio.shield(counting)  # the thread goes on although its client has left

    def _count(self, texts: list[str]) -> int:
        # Only the batch call releases the interpreter's lock while it works.
        return sum(map(len, self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)))
