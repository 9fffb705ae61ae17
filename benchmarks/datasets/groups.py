"""Groups of near copies among prompts, so that no split has copies of one prompt on both sides."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from predictors.training.dataset import Dataset, joined

SHINGLE_WORDS = 10
#: Two prompts are near copies when they share more than this part of the shingles of the one that has fewer.
SHARED_PART = 0.35
#: A shingle of more prompts than this is a form that questions are put in (an instruction, a list of choices),
#: not the question.
MOST_PROMPTS = 50

#: Chinese characters and Japanese syllables, which are written without spaces, count as words.
_CJK = "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")


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
                _link(parents, prompt, other)
    return {prompt: _root(parents, prompt) for prompt in texts}


def join_and_group(parts: Iterable[Dataset]) -> Dataset:
    """Several data sets as one, in which near copies share a group wherever they are from. Prompts that share a group in one
    of the sets keep sharing it; for those without text nothing else is known. A single set keeps its groups."""
    sets = list(parts)
    data = joined(sets)
    if sum(bool(each.prompts) for each in sets) < 2:
        return data
    prompts = [prompt for each in sets for prompt in each.prompts]
    parents = {name: name for each in prompts for name in (each.id, each.group)}
    near = groups({each.id: each.text for each in prompts if each.text is not None})
    for prompt, group in (*((each.id, each.group) for each in prompts), *near.items()):
        _link(parents, prompt, group)
    return replace(data, prompts=tuple(replace(each, group=_root(parents, each.id)) for each in data.prompts))


def without_near_copies(data: Dataset, of: Dataset) -> tuple[Dataset, int]:
    """(the part of a data set whose prompts are no near copies of those of another, the number of prompts left out). Both
    may have been read apart. A prompt without text is compared by its id and its group."""
    texts = {prompt.id: prompt.text for prompt in (*of.prompts, *data.prompts) if prompt.text is not None}
    found = groups(texts)
    taken = {name for each in of.prompts for name in (each.id, each.group, found.get(each.id))}
    apart = {
        each.id
        for each in data.prompts
        if taken.isdisjoint((each.id, each.group, found.get(each.id, each.id)))
    }
    if len(apart) == len(data.prompts):
        return data, 0
    return data.keep(prompt=lambda each: each.id in apart), len(data.prompts) - len(apart)


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return {
        tuple(words[start : start + SHINGLE_WORDS]) for start in range(max(1, len(words) - SHINGLE_WORDS + 1))
    }


def _link(parents: dict[str, str], one: str, other: str) -> None:
    first, second = sorted((_root(parents, one), _root(parents, other)))
    parents[second] = first


def _root(parents: dict[str, str], prompt: str) -> str:
    while parents[prompt] != prompt:
        parents[prompt] = parents[parents[prompt]]
        prompt = parents[prompt]
    return prompt
