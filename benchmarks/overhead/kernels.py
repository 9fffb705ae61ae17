"""`python -m benchmarks.overhead.kernels`: microseconds of each kernel of the predictors, in NumPy and compiled, with the
shipped models.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from benchmarks.overhead.micro import times_us
from predictors import kernels
from predictors.kernels import reference
from predictors.kernels.length_bins import PRIOR_SHARES
from predictors.kernels.reference.estimates import AnalyticEstimate, Estimate
from predictors.kernels.reference.lengths import answer_length
from predictors.kernels.reference.model_outputs import NO_ROWS
from predictors.learned.artifact import SHIPPED, floats, load, path_of
from predictors.learned.models import KINDS
from predictors.learned.text import prompt_features
from router.core.types import Slo

_REPEATS = 25
_LEAST_S = 0.02
_TEXT = "please write a short story about the sea and explain how a mutex works with an example in c "
_ESTIMATE = Estimate(0.2, 0.01, 0, 0, 0.1, 0.0, 9, 9, 200.0, 0.0, 180.0, 0.0, 0.009)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(kernels.description())
    numpy = dict(steps(in_numpy))
    compiled = {}
    if kernels.WHY_NOT_NATIVE is None:
        compiled = dict(steps(lambda name: getattr(kernels, name)))
    print(f"{'microseconds, least of ' + str(_REPEATS):56} {'NumPy':>8} {'compiled':>8}")
    for name, step in numpy.items():
        ours = f"{least_us(compiled[name]):8.1f}" if name in compiled else f"{'-':>8}"
        print(f"{name:56} {least_us(step):8.1f} {ours}")


def least_us(step: Callable[[], object]) -> float:
    return min(times_us(step, _LEAST_S, _REPEATS))


def in_numpy(name: str) -> Any:
    """What a name of `predictors.kernels` is in NumPy."""
    modules = [
        import_module(f"{reference.__name__}.{each.name}") for each in iter_modules(reference.__path__)
    ]
    return next(vars(module)[name] for module in modules if name in vars(module))


def weights_of(kind: str) -> dict[str, np.ndarray]:
    return floats(load(path_of(SHIPPED, kind), kind, KINDS[kind].model.features).arrays)


def steps(of: Callable[[str], Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each kernel's name and a call of it. `of` gives a name of `predictors.kernels`."""
    weights = weights_of("length")
    length, table = of("LengthNetwork")(weights), weights["model_table"]
    fleet = length.fleet(table[:1], weights["model_spread"][:1])
    for text, count in ((_TEXT * 2)[:170], 30), (_TEXT * 20, 192):
        prompt = prompt_features(text)
        yield f"words of {len(text)} characters", lambda text=text: of("read_words")(text)  # type: ignore[misc]
        yield f"length, {count} words", lambda prompt=prompt: length.shares(prompt, fleet)  # type: ignore[misc]
    shares, usual = length.shares(prompt, fleet), of("LengthTable")(PRIOR_SHARES)
    learned = of("LearnedLengths")()
    yield "length learning, one answer", lambda: learned.observe(shares[0], usual, 200, False)
    yield "served length tables, one model", lambda: of("served_tables")([learned], shares, [usual])

    weights = weights_of("relevance")
    encoder = of("Encoder")(
        weights["gram_ids"].astype(np.int64), weights["gram_idf"], weights["gram_table"], weights["gram_step"],
        weights["lexicon"], weights["lexicon_step"], float(weights["unknown_idf"]),
    )  # fmt: skip
    experts = of("RelevanceNetwork")(weights)
    heads = [experts.heads(0, np.array([0]))]
    yield "relevance, 192 words, one model", lambda: experts.quality(encoder.vector(prompt), heads)

    latency, memory = of("LatencyNetwork")(weights_of("latency")), of("MemoryNetwork")(weights_of("memory"))
    state, event = latency.start(), tuple(np.linspace(-1.0, 1.0, 18).tolist())
    yield "LSTM step, one event", lambda: latency.step(event, state)
    for count in (1, 16, 64):
        yield f"latency and memory, {count} candidates", _candidates(of, latency, memory, count)
    answer = answer_length(usual, 512, 1, usual)
    window = of("ResidualWindow")(0.35, 0.5)
    for at in range(200):
        window.observe((at * 37 % 101 - 50) / 100.0)
    for count in (1, 16):
        estimate = AnalyticEstimate(_ESTIMATE, 0.01, 0.2, 2.0, window, window)
        given = of("Estimates")([estimate] * count), [answer] * count, [False] * count, [False] * count
        rows = [-1] * count
        yield (
            f"P(miss) of three targets, {count} candidates",
            lambda given=given, rows=rows: of("p_miss")(Slo(1.0, 0.05, 20.0), 0.0, *given, NO_ROWS, rows),  # type: ignore[misc]
        )


def _candidates(of: Callable[[str], Any], latency: Any, memory: Any, count: int) -> Callable[[], object]:
    states, summaries, estimates = [latency.start()] * count, [(0.5,) * 44] * count, [_ESTIMATE] * count
    weights, offsets = [(of("ModelWeight")(),) * 2] * count, [([0.0] * 5, [0.0] * 5)] * count
    window = of("ResidualWindow")(0.35, 0.5)
    known = of("Estimates")([AnalyticEstimate(_ESTIMATE, 0.01, 0.2, 2.0, window, window)] * count)
    held, reported = [0.2] * count, [0.3] * count

    def run() -> None:
        rows = of("target_rows")(summaries, estimates, 10.0)
        of("served_quantiles")(latency.quantiles(states, rows), known, range(count), weights, offsets)
        memory.predict(of("memory_rows")(held, reported, rows))

    return run


if __name__ == "__main__":
    main()
