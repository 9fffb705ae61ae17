"""Prompt tokens by a `tokenizer.json` that the fleet file names (extra `tokenizers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from router.gateway.prompt import IMAGE_TOKENS, PromptFacts, prompt_texts

#: Texts longer than this are counted in a thread, so that others need not wait for it.
_IN_THREAD_CHARS = 20_000
#: What a chat template usually adds for one message.
_USUAL_PER_MESSAGE = 5


class PromptTokenizer:
    """Counts a prompt's tokens. The chat template is not applied: what it adds is estimated and bounded."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

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
        if sum(map(len, counted)) > _IN_THREAD_CHARS:
            tokens = await asyncio.to_thread(self._count, counted)
        else:
            tokens = self._count(counted)
        usual = _USUAL_PER_MESSAGE * len(body["messages"]) if api == "chat" else len(texts)
        return (
            tokens + usual + facts.media * IMAGE_TOKENS,
            tokens + max(0, facts.tokens_bound - facts.text_bytes),
        )

    def _count(self, texts: list[str]) -> int:
        return sum(len(self._tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
