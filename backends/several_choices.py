"""The choices of one streamed answer that has several (`n`, or several prompts)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SeveralChoices:
    """Which of an answer's choices have begun and ended, and their counts where the engine counts each alone."""

    def __init__(self, choices: int, prompts: int) -> None:
        """`choices` for all of the `prompts` together."""
        self._choices = choices
        self._prompts = prompts
        self._begun: set[Any] = set()
        self._ended: set[Any] = set()
        self._counts: list[Mapping[str, Any]] = []

    def take(self, index: Any, *, ends: bool) -> None:
        """An event is of this choice, and ends it if it has a finish reason."""
        (self._ended if ends else self._begun).add(index)

    @property
    def have_ended(self) -> bool:
        """Whether each choice that has begun has ended."""
        return self._begun <= self._ended

    def usage(self, counts: Mapping[str, Any], *, last: bool) -> Mapping[str, Any] | None:
        """The usage of the whole answer, once all choices have ended. llama-server counts each choice with its prompt alone, and
        tells it in the choice's last event or in one after it (`last`)."""
        if last:
            self._counts.append(counts)
        if len(self._counts) < self._choices:
            return None
        prompts, made = (
            sum(each.get(name) or 0 for each in self._counts)
            for name in ("prompt_tokens", "completion_tokens")
        )
        prompt = prompts * self._prompts // self._choices
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
