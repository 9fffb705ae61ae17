"""A workload replayed again and again: in another order, with other lengths of the answers, and both.

The times of arrival stay; the requests that come at these times are shuffled. Of a few requests, chosen once, the figures are
followed through all replays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from random import Random

import numpy as np
import numpy.typing as npt

from benchmarks.experiments import charts
from benchmarks.experiments.answer_lengths import USUAL_SIGMA, Logs
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.experiments.traffic import Seen, background, capacities_per_s, opened, play, unequal_fleet
from benchmarks.measures import coefficient_of_variation
from benchmarks.workloads.format import WorkloadRequest

LOAD = 0.7
#: What each arm changes from replay to replay: (the order, the lengths of answers).
ARMS: Mapping[str, tuple[bool, bool]] = {
    "order": (True, False),
    "answer lengths": (False, True),
    "order and answer lengths": (True, True),
}
MEASURES = ("TTFT (s)", "E2E (s)", "output tokens", "memory ratio")
_CHOSEN = 24


#: Of the chosen requests in all replays of an arm: by measure (replays, requests).
Followed = Mapping[str, npt.NDArray[np.float64]]


def section(replays: int, requests: int, policy: str, seed: int, noise: Logs | None) -> Section:
    """`requests` under a policy on the unequal fleet, `replays` times in each arm. `noise` has measured logs of answers'
    lengths to draw from."""
    fleet = opened(unequal_fleet())
    rate_per_s = LOAD * sum(capacities_per_s(seed).values())
    original = background(rate_per_s, requests, seed)
    chosen = followed(original)

    def arm(order: bool, lengths: bool) -> Followed:
        seen = [
            play(fleet, changed(original, order, lengths, noise, f"{seed}/{at}"), seed, policy)
            for at in range(replays)
        ]
        return values_of(seen, chosen)

    source = (
        f"log-normal with the usual sigma of {USUAL_SIGMA:g}"
        if noise is None
        else "that of one model under two hosts (see the length of answers)"
    )
    return report_of(
        {name: arm(*changes) for name, changes in ARMS.items()},
        chosen,
        original,
        [
            f"{requests} requests come to the fleet of the scenario one-model-unequal-gpus at {LOAD:.0%} of its capacity under"
            f" the policy {policy}, {replays} times in each arm. {len(chosen)} requests are followed, spread over all lengths.",
            f"The noise of answers' lengths is {source}. The memory ratio is the mean share of the KV memory in use at the"
            " request's instance during its life; engines of the kind Ollama report none.",
            "Where nothing is changed, a replay gives the same figures to the last digit.",
        ],
    )


def report_of(
    found: Mapping[str, Followed],
    chosen: Sequence[str],
    requests: Sequence[WorkloadRequest],
    text: Sequence[str],
) -> Section:
    """The section of what was followed by arm; the last arm's is shown request by request."""
    *_, (last, values) = found.items()
    return Section(
        "A workload replayed in shuffled order",
        text,
        [
            Results(
                "The same requests over the replays: mean, and medians over the requests of variance and CV",
                ("what changes", "measure", "mean", "variance of a request", "CV of a request"),
                [row for arm, each in found.items() for row in _rows(arm, each)],
            ),
            Results.of(f"Each followed request ({last})", _by_request(values, chosen, requests)),
        ],
        [
            charts.lanes(
                "replays_cv",
                "The same request in a replayed workload: median coefficient of variation, and its quartiles over the requests",
                "coefficient of variation over the replays",
                _lanes(found),
                zero=True,
            )
        ],
    )


def changed(
    requests: Sequence[WorkloadRequest], order: bool, lengths: bool, noise: Logs | None, seed: str
) -> list[WorkloadRequest]:
    """One replay: the times stay, and at them come the requests in a drawn order and with drawn lengths of answers."""
    random = Random(seed)
    coming = list(requests)
    if order:
        random.shuffle(coming)
    if lengths:
        coming = [replace(each, output_tokens=_redrawn(each, noise, random)) for each in coming]
    return [replace(each, arrival_s=old.arrival_s) for each, old in zip(coming, requests, strict=True)]


def _redrawn(request: WorkloadRequest, noise: Logs | None, random: Random) -> int:
    log = random.gauss(0.0, USUAL_SIGMA) if noise is None else float(noise[random.randrange(len(noise))])
    return max(1, round((request.longest_output_tokens() or 1) * exp(log)))


def followed(requests: Sequence[WorkloadRequest]) -> list[str]:
    """The ids to follow, evenly through the requests in order of input length."""
    ordered = sorted(requests, key=lambda each: (each.prompt_tokens, each.id))
    places = np.linspace(0, len(ordered) - 1, min(_CHOSEN, len(ordered))).round().astype(int)
    return [ordered[place].id for place in places]


def values_of(seen: Sequence[Seen], chosen: Sequence[str]) -> Followed:
    """Of what was seen in each replay."""
    rows = [each.of(chosen) for each in seen]
    columns = [
        [each.columns[name][where] for each, where in zip(seen, rows, strict=True)]
        for name in ("ttft_s", "e2e_s", "output_tokens")
    ]
    memory = [each.memory[where] for each, where in zip(seen, rows, strict=True)]
    return {
        measure: np.array(found, float) for measure, found in zip(MEASURES, (*columns, memory), strict=True)
    }


def _rows(arm: str, found: Followed) -> list[list[Value]]:
    return [
        [
            arm,
            measure,
            _mean(values),
            _median([float(known.var(ddof=1)) for known in _known(values)]),
            _median(_variations(values)),
        ]
        for measure, values in found.items()
    ]


def _known(values: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
    """Of each request the known values, where there are two at least."""
    found = [column[np.isfinite(column)] for column in values.T]
    return [each for each in found if len(each) > 1]


def _variations(values: npt.NDArray[np.float64]) -> list[float]:
    return [coefficient_of_variation(known) or 0.0 for known in _known(values)]


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _by_request(
    found: Followed, chosen: Sequence[str], requests: Sequence[WorkloadRequest]
) -> list[dict[str, Value]]:
    tokens = {request.id: request.prompt_tokens for request in requests}
    rows: list[dict[str, Value]] = []
    for place, name in enumerate(chosen):
        row: dict[str, Value] = {"request": name, "input tokens": tokens[name]}
        for measure, values in found.items():
            known = values[:, place][np.isfinite(values[:, place])]
            row[f"{measure}, mean"] = _mean(known)
            row[f"{measure}, variance"] = float(known.var(ddof=1)) if len(known) > 1 else None
        rows.append(row)
    return rows


def _lanes(found: Mapping[str, Followed]) -> dict[str, list[charts.Lane]]:
    rows: dict[str, list[charts.Lane]] = {}
    for arm, each in found.items():
        for measure, values in each.items():
            if variations := _variations(values):
                middle, low, high = np.quantile(variations, (0.5, 0.25, 0.75)).tolist()
                rows.setdefault(measure.partition(" (")[0], []).append((arm, middle, low, high))
    return rows
