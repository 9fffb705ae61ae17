"""The latency model's and the memory model's predictions for the candidates of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from predictors.kernels.reference.estimates import Estimates
from predictors.kernels.reference.latency_networks import (
    LatencyNetwork,
    MemoryNetwork,
    memory_rows,
    target_rows,
)
from predictors.kernels.reference.quantiles import served_quantiles
from router.compiled import compiled_init

#: The latency model predicts for at most this many candidates, those that the analytic estimate ranks first. The others
#: keep the analytic estimate with its own errors.
MOST_MODELLED = 64
#: An array with a row for each candidate that is modelled. Compiled: its bytes.
Rows = Any
NO_ROWS: Rows = b""
#: Observations of an instance before the latency model decides there. Before that it cannot distinguish a profile that fits
#: from one that does not.
LEAST_OBSERVED = 2


@compiled_init
class ModelOutputs(NamedTuple):
    """`rows` has the row of each candidate, -1 for those without a prediction. By row: the quantiles of log errors (2,
    PREDICTIONS, TAUS), the factors for those that serve (2, 3: median, 95 % quantile, mean), and the memory model's input,
    which it reads only for the candidate that is taken (empty without a memory model).

    What serves is shown, recorded and learned from. A choice compares candidates: `decides_ttft` and `decides_tpot` say, for
    each of them, whether P(miss) and the mean E2E take what serves too, or the physical estimate alone.
    """

    rows: list[int]
    quantiles: Rows
    factors: Rows
    memory: MemoryNetwork | None
    memory_rows: Rows
    decides_ttft: list[bool]
    decides_tpot: list[bool]


def model_outputs(
    head: LatencyNetwork,
    memory: MemoryNetwork | None,
    stats: Sequence[Any],
    estimates: Estimates,
    instances: Sequence[Any],
    now: float,
) -> ModelOutputs:
    """The outputs for each candidate's analytic estimate at its instance. `stats` are its
    `predictors.online.candidate_stats.CandidateStats`. `head` may be anything with the method `quantiles`."""
    rows, decides_ttft, decides_tpot = [-1] * len(stats), [False] * len(stats), [False] * len(stats)
    places = estimates.soonest(MOST_MODELLED)
    of_places = [stats[at] for at in places]
    known = [estimates[at].estimate for at in places]
    for row, (at, of, estimate) in enumerate(zip(places, of_places, known, strict=True)):
        rows[at] = row
        decides_ttft[at] = estimate.ttft_count >= LEAST_OBSERVED
        decides_tpot[at] = estimate.tpot_count >= LEAST_OBSERVED and of.profile is None
    summaries = [of.history.summary(instances[at]) for at, of in zip(places, of_places, strict=True)]
    targets = target_rows(summaries, known, now)
    quantiles, factors = served_quantiles(
        head.quantiles([of.history.state for of in of_places], targets),
        estimates,
        places,
        [of.weights for of in of_places],
        [(of.group.offsets[0].values, of.group.offsets[1].values) for of in of_places],
    )
    held = NO_ROWS
    if memory is not None:
        reported = [instances[at].report.kv_usage for at in places]
        held = memory_rows([estimates[at].memory_ratio for at in places], reported, targets)
    return ModelOutputs(rows, quantiles, factors, memory, held, decides_ttft, decides_tpot)
