"""Small made-up runs: one server that takes requests in turn, at a few loads."""

from __future__ import annotations

import random

from predictors.training.dataset import Attempt, Dataset, Run, State


def served(levels: int = 4, requests: int = 60, source: str = "made", given_up: bool = False) -> Dataset:
    """A first token comes after the prompts ahead and the own one, at 1,000 tokens a second; answers of 20 tokens take
    10 ms a token. With `given_up` every tenth request is cancelled before its first token."""
    runs, attempts, states = [], [], []
    for level in range(1, levels + 1):
        run = Run(f"{source}/{level}", source, f"{source}/{level}", "m", level=str(level))
        runs.append(run)
        rng, now, free_at = random.Random(level), 0.0, 0.0
        for at in range(requests):
            now += rng.expovariate(0.8 * level)
            tokens = rng.choice((100, 200, 400))
            if given_up and at % 10 == 9:
                attempts.append(Attempt(run.id, "m", now, tokens, None, now + 0.05, ended_how="cancelled"))
                continue
            free_at = max(free_at, now) + tokens / 1000
            attempts.append(Attempt(run.id, "m", now, tokens, free_at, free_at + 0.19, 20))
        states += [State(run.id, float(second), level, 0, 0.1 * level) for second in range(int(now))]
    return Dataset(runs=tuple(runs), attempts=tuple(attempts), states=tuple(states))
