"""Length restriction: prompts and outputs cut or filtered to bounds, word-count wishes rewritten to fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from backends.emulator.text import count_tokens
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS, WorkloadError, WorkloadRequest

#: Tokens that one unit of English text takes, rounded up so that what fits, fits: about 0.75 words a token,
#: 18 words a sentence, 100 words a paragraph, 500 words a page.
TOKENS_PER_UNIT: Mapping[str, float] = {"word": 4 / 3, "sentence": 24.0, "paragraph": 134.0, "page": 667.0}

_SPELLED = {
    word: value
    for value, word in enumerate(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
        start=1,
    )
} | {"fifty": 50, "hundred": 100, "thousand": 1000}
_NUMBER = r"\d[\d,]*(?:\s?[kK]\b)?|(?:(?:" + "|".join(_SPELLED) + r")[ -]?)+\b"
#: A request to write: without one of these before it, a number of words is a fact and not a wish.
_VERB = re.compile(
    r"\b(?:write|writing|compose|draft|generate|create|produce|summari[sz]e|describe|explain|answer|respond|reply"
    r"|need|give|list|tell|make|essay|story|article|report|summary|limit|at least|at most|no more than|maximum"
    r"|minimum|up to)\b",
    re.IGNORECASE,
)
_WISH = re.compile(
    rf"\b(?P<first>{_NUMBER})(?:(?P<join>\s?(?:-|–|to)\s?)(?P<second>{_NUMBER}))?"
    r"(?P<gap>[ -])(?P<unit>words?|sentences?|paragraphs?|pages?)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?\n](?:\s|$)")


def _value(number: str) -> int | None:
    """What a number says, in figures or words ("2,000", "2k", "five hundred"); None if it is no number."""
    plain = number.strip().lower().replace(",", "")
    if plain.endswith("k") and plain[:-1].strip().isdigit():
        return int(plain[:-1]) * 1000
    if plain.isdigit():
        return int(plain)
    total = 0
    for word in re.split(r"[ -]+", plain):
        if word not in _SPELLED:
            return None
        total = max(total, 1) * _SPELLED[word] if word in ("hundred", "thousand") else total + _SPELLED[word]
    return total or None


def _rounded_down(value: int) -> int:
    """A number that a person would write: two leading figures from 100 on, tens from 20 on."""
    for step in (1000, 100, 10):
        if value >= 10 * step or (step == 10 and value >= 20):
            return value // step * step
    return value


def rewrite_length_wishes(prompt: str, max_output_tokens: int) -> str:
    """The prompt with every wish for more words (sentences, paragraphs, pages) than `max_output_tokens`
    holds lowered to what fits; other numbers and wishes that fit stay untouched.

    >>> rewrite_length_wishes("Write a 2000 word essay.", 400)
    'Write a 300 word essay.'
    """

    def fitted(match: re.Match[str]) -> str:
        sentence_start = 0
        for end in _SENTENCE_END.finditer(prompt, 0, match.start()):
            sentence_start = end.end()
        if not _VERB.search(prompt, sentence_start, match.start()):
            return match.group()
        unit = match["unit"].lower().removesuffix("s")
        most = max(1, int(max_output_tokens / TOKENS_PER_UNIT[unit]))
        last = _value(match["second"] or match["first"])
        if last is None or last <= most:
            return match.group()
        fits = _rounded_down(most)
        return f"{fits}{match['gap']}{match['unit'].removesuffix('s') if fits == 1 else match['unit']}"

    return _WISH.sub(fitted, prompt)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Length bounds. None is no bound. `on_long`: "cut" shortens what is longer, "drop" leaves it out."""

    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_output_tokens: int | None = None
    max_output_tokens: int | None = None
    on_long: Literal["cut", "drop"] = "cut"

    def __post_init__(self) -> None:
        for low, high, what in (
            (self.min_prompt_tokens, self.max_prompt_tokens, "prompt"),
            (self.min_output_tokens, self.max_output_tokens, "output"),
        ):
            if low is not None and high is not None and low > high:
                raise WorkloadError(f"--min-{what}-tokens {low} is above --max-{what}-tokens {high}")

    def as_dict(self) -> dict[str, int | str]:
        """The bounds that are set, for a header."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return given if given.keys() != {"on_long"} else {}


def restrict(requests: Iterable[WorkloadRequest], bounds: Bounds) -> Iterator[WorkloadRequest]:
    """The requests within `bounds`. Too short ones are dropped, too long ones cut or dropped. Wishes are rewritten before a
    prompt is cut, so that the requested length fits the allowed one."""
    for original in requests:
        request = original
        output_tokens = request.longest_output_tokens()
        if (bounds.min_prompt_tokens or 0) > request.prompt_tokens:
            continue
        if output_tokens is not None and (bounds.min_output_tokens or 0) > output_tokens:
            continue
        if bounds.on_long == "drop" and (
            _above(request.prompt_tokens, bounds.max_prompt_tokens)
            or _above(output_tokens, bounds.max_output_tokens)
        ):
            continue
        if bounds.max_output_tokens is not None:
            request = _with_output_bound(request, bounds.max_output_tokens)
        if bounds.max_prompt_tokens is not None and request.prompt_tokens > bounds.max_prompt_tokens:
            request = with_prompt_tokens(request, bounds.max_prompt_tokens)
        yield request


def _above(tokens: int | None, bound: int | None) -> bool:
    return tokens is not None and bound is not None and tokens > bound


def _with_output_bound(request: WorkloadRequest, most: int) -> WorkloadRequest:
    tokens = request.output_tokens
    if isinstance(tokens, Mapping):
        tokens = {model: min(count, most) for model, count in tokens.items()}
    elif tokens is not None:
        tokens = min(tokens, most)
    max_tokens = most if request.max_tokens is None else min(request.max_tokens, most)
    request = replace(request, output_tokens=tokens, max_tokens=max_tokens)
    if request.prompt is None:
        return request
    rewritten = rewrite_length_wishes(request.prompt, most)
    if rewritten == request.prompt:
        return request
    if count_tokens(request.prompt) == request.prompt_tokens:
        request = replace(request, prompt_tokens=count_tokens(rewritten))
    return replace(request, prompt=rewritten)


def with_prompt_tokens(request: WorkloadRequest, prompt_tokens: int) -> WorkloadRequest:
    """A copy of another prompt length; prefix blocks past its end are left out."""
    hashes = request.prefix_hashes
    if hashes is not None:
        hashes = hashes[: -(-prompt_tokens // PREFIX_BLOCK_TOKENS)]
    return replace(request, prompt_tokens=prompt_tokens, prefix_hashes=hashes)
