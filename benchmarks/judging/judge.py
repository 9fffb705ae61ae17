"""A judge model behind any OpenAI endpoint, asked about many answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import httpx2
import openai

from backends.http1 import hidden, secret_words
from router.judging import body_of, pair_question, preference_of, quality_of, question

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
_TIMEOUT_S = 120.0  # of one read
_CALL_TIMEOUT_S = 3 * _TIMEOUT_S  # of one call with its retries
_AT_ONCE = 4
#: So many answers in a row without a verdict end it: the judge is gone, refuses all, or cannot follow the form.
_MOST_WITHOUT = 32
_MOST_LETTERS = 300
#: A message that has so many letters in a row of the question repeats it.
_REPEATED_LETTERS = 16


@dataclass(slots=True)
class Verdicts(Generic[Key]):
    """What a judge said, by what it was asked about: a quality in [0, 1], or of a pair the preference for the first.

    `unreadable`: the judge's answer had no verdict. `failed`: there was no answer, for these `reasons`; `error` is the server's
    first message. `unasked`: it was ended before these. `swayed`: pairs for which another order of the answers gave another
    verdict; they count as ties (None: no pairs). `without` are the last ones in a row without a verdict.
    """

    found: dict[Key, float] = field(default_factory=dict)
    unreadable: int = 0
    failed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    error: str = ""
    unasked: int = 0
    swayed: int | None = None
    without: int = 0

    @property
    def counts(self) -> dict[str, int]:
        counts = {"judged": len(self.found), "unreadable": self.unreadable, "failed": self.failed}
        if self.unasked:
            counts["unasked"] = self.unasked
        return counts if self.swayed is None else {**counts, "swayed": self.swayed}

    def lines(self) -> list[str]:
        """The counts, and why there is no verdict, for a terminal."""
        lines = ["judge: " + ", ".join(f"{count} {name}" for name, count in self.counts.items())]
        if self.reasons:
            lines.append(
                "failed: " + ", ".join(f"{why} ({count})" for why, count in self.reasons.most_common())
            )
        if self.error:
            lines.append(f"the judge's first error: {self.error}")
        if self.unasked:
            lines.append(f"stopped: {self.without} in a row without a verdict")
        return lines

    def keep(self, key: Key, reply: str | None, verdict: float | None) -> None:
        """Keep a verdict, or count why there is none. `reply` is None if there was no answer."""
        self.without = 0 if verdict is not None else self.without + 1
        if verdict is not None:
            self.found[key] = verdict
        elif reply is None:
            self.failed += 1
        else:
            self.unreadable += 1


class Judge:
    """A judge model at one endpoint."""

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        self._url, self._model, self._api_key = url, model, api_key
        self._secrets = secret_words([api_key or ""])

    async def score(
        self,
        answers: Mapping[Key, tuple[str, str]],
        verdicts: Verdicts[Key],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Score (prompt, answer) pairs into `verdicts`, each as it comes."""

        async def one(client: openai.AsyncOpenAI, key: Key, asked: tuple[str, str]) -> None:
            reply = await self._ask(client, question(*asked), verdicts)
            verdicts.keep(key, reply, None if reply is None else quality_of(reply))

        await self._all(answers, one, verdicts, on_progress)

    async def compare(
        self,
        pairs: Mapping[Key, tuple[str, str, str]],
        verdicts: Verdicts[Key],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Compare the two answers of each (prompt, first, second) in both orders, into `verdicts`."""
        verdicts.swayed = 0

        async def one(client: openai.AsyncOpenAI, key: Key, asked: tuple[str, str, str]) -> None:
            prompt, first, second = asked
            preferences = []
            for message in (pair_question(prompt, first, second), pair_question(prompt, second, first)):
                reply = await self._ask(client, message, verdicts)
                preference = None if reply is None else preference_of(reply)
                if preference is None:
                    verdicts.keep(key, reply, None)
                    return
                preferences.append(preference)
            straight, turned = preferences
            if straight + turned != 1.0:
                verdicts.swayed = (verdicts.swayed or 0) + 1
                straight = 0.5
            verdicts.keep(key, reply, straight)

        await self._all(pairs, one, verdicts, on_progress)

    async def _all(
        self,
        items: Mapping[Key, Item],
        one: Callable[[openai.AsyncOpenAI, Key, Item], Awaitable[None]],
        verdicts: Verdicts[Key],
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Do `one` for all, a few at once, until too many in a row have no verdict."""
        waiting = iter(items.items())
        done = 0
        client = openai.AsyncOpenAI(
            base_url=f"{self._url.rstrip('/').removesuffix('/v1')}/v1",
            api_key=self._api_key or "none",
            timeout=_TIMEOUT_S,
        )

        async def work() -> None:
            nonlocal done
            while verdicts.without < _MOST_WITHOUT and (each := next(waiting, None)) is not None:
                await one(client, *each)
                done += 1
                on_progress(done, len(items))

        async with client:
            await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        verdicts.unasked = len(items) - done

    async def _ask(self, client: openai.AsyncOpenAI, message: str, verdicts: Verdicts[Key]) -> str | None:
        """The judge's answer; None if there was none: `verdicts` get the reason."""
        reasons = verdicts.reasons
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                answer = await client.chat.completions.create(**body_of(self._model, message))
            content = answer.choices[0].message.content or ""
            if not isinstance(content, str):  # the library does not check what a server sends
                raise TypeError
            return content
        except openai.APIStatusError as error:
            reasons[f"status {error.status_code}"] += 1
            said = error.body.get("message") if isinstance(error.body, dict) else None
            verdicts.error = verdicts.error or _shown(hidden(str(said or ""), self._secrets), message)
        except (openai.APITimeoutError, TimeoutError):
            reasons["no answer in time"] += 1
        except (openai.OpenAIError, httpx2.HTTPError):
            reasons["no connection"] += 1
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            reasons["no chat completion"] += 1
        return None


def _shown(said: str, question: str) -> str:
    """A server's message, cut; without it where it repeats a part of the question, which has a prompt and an answer."""
    shown = "".join(filter(str.isprintable, " ".join(said.split())))[:_MOST_LETTERS]
    asked = " ".join(question.split())
    parts = (shown[at : at + _REPEATED_LETTERS] for at in range(len(shown) - _REPEATED_LETTERS + 1))
    return "(not shown: it repeats the question)" if any(part in asked for part in parts) else shown
