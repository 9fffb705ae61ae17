"""Prompts one after another through a policy object, as the scheduler would ask it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from benchmarks.pickers.cases import Case, Table
from router.core.interfaces import CheckedAnswer, Option, Policy
from router.core.state import Instance
from router.core.types import AnswerCheck, Prediction, Request


class SimulatedCheck(NamedTuple):
    """A check, and its score of the answer of a model (its column) to the prompt in a row."""

    check: AnswerCheck
    score: Callable[[int, int], float]


class Picks(NamedTuple):
    """Of each prompt, all (P,): the column of the model whose answer was delivered, what was spent beside that answer, and
    whether the answer of another model was checked, and replaced."""

    models: np.ndarray
    more_usd: np.ndarray
    checked: np.ndarray
    replaced: np.ndarray


def options_of(case: Case) -> list[Option]:
    """One instance a model, with room for all."""
    return [Option(each, Instance(each.instance, "vllm", {each.model: each})) for each in case.candidates()]


def request_of(table: Table, row: int, policy: str, now: float) -> Request:
    """The prompt in this row as a request that arrives now."""
    case, prompt = table.case, table.prompts[row]
    size = int(table.prompt_tokens[row])
    return Request(
        f"{row}",
        now,
        policy,
        tuple(case.models),
        prompt_tokens=size,
        prompt_tokens_bound=size,
        max_tokens=case.max_tokens,
        features=prompt.features,
    )


def replay(
    policy: Policy,
    table: Table,
    predictions: Sequence[Sequence[Prediction]],
    order: Sequence[int],
    seed: int,
    check: SimulatedCheck | None = None,
) -> Picks:
    """What each prompt was given, the prompts arriving in `order`, one a second. `predictions` are for each prompt and
    model."""
    options = options_of(table.case)
    rng = Random(seed)
    picks = Picks(*(np.zeros(len(order), kind) for kind in (int, float, bool, bool)))
    for second, row in enumerate(order):
        request = request_of(table, row, policy.name, float(second))
        if check is not None:
            request.check = check.check
        for option, prediction in zip(options, predictions[row], strict=True):
            option.prediction = prediction if policy.predicts else None
        choice = policy.choose(request, options, rng)
        policy.placed(request, options, choice)
        taken = choice.index
        if check is not None and choice.check:
            usd = float(table.cost_usd[row, taken])
            tokens = float(table.output_tokens[row, taken])
            picks.checked[row] = True
            picks.more_usd[row] = check.check.cost_usd(request.prompt_tokens, tokens)
            answer = CheckedAnswer(
                options[taken].candidate, predictions[row][taken], usd, check.score(row, taken)
            )
            other = policy.reconsider(request, answer, options, rng)
            if other is not None:
                policy.placed(request, options, other)
                picks.more_usd[row] += usd
                picks.replaced[row] = True
                taken = other.index
        policy.ended(request, options[taken].candidate, None, second + 0.5)
        picks.models[row] = taken
    return picks


def orders(rows: int, seeds: int) -> list[list[int]]:
    """Random orders, the same for every policy."""
    found = []
    for seed in range(seeds):
        order = list(range(rows))
        Random(seed).shuffle(order)
        found.append(order)
    return found
