"""Groups of near copies among prompts, so that no split has copies of one prompt on both sides."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

SHINGLE_WORDS = 10
#: Two prompts are near copies when they share more than this part of the shingles of the one that has fewer.
SHARED_PART = 0.35
#: A shingle of more prompts than this is a form that questions are put in (an instruction, a list of choices),
#: not the question.
MOST_PROMPTS = 50

_WORD = re.compile(r"\w+")


def groups(texts: Mapping[str, str]) -> dict[str, str]:
    """The group of each prompt, by the prompts' ids: the smallest id among its near copies and theirs.

    Compares prompts through an inverted index of their shingles: linear in the texts, 20,000 prompts in
    a few seconds. A prompt shorter than a shingle is one shingle.
    """
    shingles = {prompt: _shingles(text) for prompt, text in texts.items()}
    holders: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for prompt, found in shingles.items():
        for shingle in found:
            holders[shingle].append(prompt)
    parents = {prompt: prompt for prompt in texts}
    for prompt, found in shingles.items():
        shared = Counter(
            other
            for shingle in found
            if 1 < len(holders[shingle]) <= MOST_PROMPTS
            for other in holders[shingle]
            if other < prompt
        )
        for other, count in shared.items():
            if count > SHARED_PART * min(len(found), len(shingles[other])):
                first, second = sorted((_root(parents, prompt), _root(parents, other)))
                parents[second] = first
    return {prompt: _root(parents, prompt) for prompt in texts}


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {
        tuple(words[start : start + SHINGLE_WORDS]) for start in range(max(1, len(words) - SHINGLE_WORDS + 1))
    }


def _root(parents: dict[str, str], prompt: str) -> str:
    while parents[prompt] != prompt:
        parents[prompt] = parents[parents[prompt]]
        prompt = parents[prompt]
    return prompt
