"""Prompts one after another through a policy object, as the scheduler would ask it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from benchmarks.pickers.cases import Case, Table
from router.core.interfaces import Learner, Option, Policy
from router.core.state import Instance
from router.core.types import Prediction, Request


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
) -> np.ndarray:
    """(P,) the column of the model that each prompt was given, the prompts arriving in `order`, one a second.
    `predictions` are for each prompt and model."""
    options = options_of(table.case)
    rng = Random(seed)
    picked = np.full(len(order), -1)
    for second, row in enumerate(order):
        request = request_of(table, row, policy.name, float(second))
        for option, prediction in zip(options, predictions[row], strict=True):
            option.prediction = prediction if policy.predicts else None
        choice = policy.choose(request, options, rng)
        policy.placed(request, options, choice)
        if isinstance(policy, Learner):
            policy.ended(request, options[choice.index].candidate, None, second + 0.5)
        picked[row] = choice.index
    return picked


def orders(rows: int, seeds: int) -> list[list[int]]:
    """Random orders, the same for every policy."""
    found = []
    for seed in range(seeds):
        order = list(range(rows))
        Random(seed).shuffle(order)
        found.append(order)
    return found
