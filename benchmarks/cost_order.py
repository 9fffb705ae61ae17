"""`python -m benchmarks.cost_order --out DIR`: does `cost` keep its constraints in their order?

The best model of a fleet has nearly all of its capacity, half of it or a tenth of it; a cheap one has the rest. Rates go
from half the fleet's capacity to three times it, under two tariffs. An instance's capacity is the greatest rate at which
it alone keeps the target of attainment under `latency`. Each run is judged after its first requests by attainment, by the
mean quality of the models that answered (as the fleet file has it, so that no luck of single answers counts), and by spend
for each request.

The clairvoyant splits the requests between the models beforehand and places each by `latency` among its model's instances.
It tries the shares of the best model from all down, twice: with any requests, and with those of the loosest SLOs first. It
takes the greatest share with which the target is kept on the very requests that it is judged on, and on the first draw also
over four times as many requests: a share that overloads the best model keeps the target only until its queue is long. It and
the other policies are compared with `cost` on the same draws, the first ones.

Finished runs are kept in `DIR/runs.jsonl`, so that an interrupted experiment goes on. `DIR/report.json` has all cases;
docs/cost_order.json is such a file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import orjson

from benchmarks.checks import whole_number
from benchmarks.compare import pool
from benchmarks.compare.runs import KeptRuns
from benchmarks.pages import marked
from benchmarks.result_lines import result_lines
from benchmarks.scenarios.answers import Answers, with_answers
from benchmarks.simulator import Fleet, arrivals, open_fleet, simulate
from benchmarks.terminal import status_of
from benchmarks.training.about import DECIDING, commit
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.mixes import RoutingMix, unit_draw
from benchmarks.workloads.sources.generators import Lengths, Process, generate
from router.config.load import loads

TARGET = 0.95
#: Instances of the best and of the cheap model, by what the best one has of the fleet's capacity.
FLEETS: Mapping[str, tuple[int, int]] = {"nearly all": (4, 1), "half": (2, 2), "a tenth": (1, 8)}
#: Of the fleet's capacity.
RATES = (0.5, 1.0, 1.5, 3.0)
BEST, CHEAP = "llama-3.1-70b", "llama-3.1-8b"
#: USD per million tokens of input and output.
TARIFFS = {
    "alike": {BEST: (0.40, 0.40), CHEAP: (0.03, 0.05)},
    "apart": {BEST: (0.30, 2.40), CHEAP: (0.02, 0.30)},
}
OURS, OTHERS = "cost", ("latency", "slo", "relevance")
CLAIRVOYANT = "clairvoyant"
_PROFILES = {BEST: "llama-3.1-70b@4xh100-80g", CHEAP: "llama-3.1-8b@a100-80g"}
_ANSWERS = {BEST: Answers(1.1, 0.738), CHEAP: Answers(1.3, 0.564)}
_LENGTHS = Lengths(600.0, 0.7, 120.0, 0.7)
#: The classes of SLOs from loose to tight, and their shares.
_CLASSES = {"none": 0.2, "loose": 0.2, "normal": 0.4, "tight": 0.2}
_MIX = RoutingMix.of(
    slo="ttft_ms=2000,tpot_ms=80", slo_mix=",".join(f"{name}={share}" for name, share in _CLASSES.items())
)
#: The clairvoyant's split keeps the target over so many times the requests too.
_SUSTAINED = 4
#: The share of a run's requests that comes before it is judged.
_WARM_UP = 1 / 3


@dataclass(frozen=True)
class Split:
    """`share` of the requests get the best model, the others the cheap one: any, or those of the loosest SLOs."""

    share: float
    loosest: bool


@dataclass(frozen=True)
class Trial:
    """A run over these numbers of instances of the best and the cheap model."""

    instances: tuple[int, int]
    tariff: str
    rate_per_s: float
    policy: str
    seed: int
    requests: int
    split: Split | None = None


def run(trial: Trial) -> dict[str, float]:
    """Attainment, mean quality, USD a request and the share of the best model's answers, after the first requests."""
    fleet = _fleet(trial.instances, trial.tariff)
    columns = simulate(fleet, arrivals(_requests(trial), fleet, policy=trial.policy), seed=trial.seed).columns
    judged = columns["index"] >= _WARM_UP * trial.requests
    met = columns["met"][judged]
    answered = np.array([*fleet.config.models, None])[columns["model"][judged]]
    quality = [each.quality for each in answered if each is not None]
    return {
        "attainment": float((met == 1).sum() / (met != 2).sum()),
        "quality": fmean(quality),
        "usd": float(columns["cost_usd"][judged].mean()),
        "best": quality.count(_ANSWERS[BEST].quality) / len(quality),
    }


@cache
def _fleet(instances: tuple[int, int], tariff: str) -> Fleet:
    counts = dict(zip((BEST, CHEAP), instances, strict=True))
    models, machines = [], []
    for model, count in counts.items():
        input_usd, output_usd = TARIFFS[tariff][model]
        price = {"input_usd_per_mtok": input_usd, "output_usd_per_mtok": output_usd}
        models.append({"name": model, "quality": _ANSWERS[model].quality, "price": price})
        machine = {"kind": "emulated", "profile": _PROFILES[model], "serves": {model: model}}
        machines += [{"name": f"{model}-{at}", **machine} for at in range(count)]
    return open_fleet(loads(orjson.dumps({"models": models, "instances": machines}).decode()))


def _requests(trial: Trial) -> Iterator[WorkloadRequest]:
    times = Process("gamma", trial.rate_per_s, cv=1.1).times(trial.seed)
    made = with_answers(generate("made", _LENGTHS, trial.seed), _ANSWERS, trial.seed)
    for _, request, at_s in zip(range(trial.requests), _MIX.apply(made, trial.seed), times, strict=False):
        placed = replace(request, arrival_s=at_s)
        if trial.split is not None:
            placed = placed.with_routing(models=[_model(request, trial.split, trial.seed)])
        yield placed


def _model(request: WorkloadRequest, split: Split, seed: int) -> str:
    place = unit_draw(seed, "split", request.id)
    if split.loosest:
        slo = (request.routing or {}).get("slo")
        before = 0.0
        for name, share in _CLASSES.items():
            if slo == _MIX.slo_classes.get(name):
                place = before + share * place
                break
            before += share
    return BEST if place < split.share else CHEAP


class Experiment:
    """Every case of the fleets, rates and tariffs."""

    def __init__(
        self, out: Path, seeds: int, other_seeds: int, requests: int, processes: pool.Processes
    ) -> None:
        self._seeds, self._other_seeds, self._requests = range(seeds), range(other_seeds), requests
        self._runs = KeptRuns(
            out / "runs.jsonl", processes, run, lambda trial: orjson.dumps(astuple(trial)).decode()
        )

    def cases(self, fleets: Sequence[str], loads: Sequence[float]) -> list[dict[str, Any]]:
        """What came of each of these fleets and loads, under each tariff."""
        one = {model: self._capacity(model) for model in (BEST, CHEAP)}
        # The tariff moves neither the other policies nor the split.
        tariff = next(iter(TARIFFS))
        trials = [
            (name, load, Trial(each, tariff, load * capacity, OURS, 0, self._requests))
            for name in fleets
            for each in [FLEETS[name]]
            for capacity in [each[0] * one[BEST] + each[1] * one[CHEAP]]
            for load in loads
        ]
        ours = [replace(trial, tariff=each) for _, _, trial in trials for each in TARIFFS]
        others = [replace(trial, policy=policy) for _, _, trial in trials for policy in OTHERS]
        self._runs.of([*_draws(ours, self._seeds), *_draws(others, self._other_seeds)])
        return [row for name, load, trial in trials for row in self._rows(name, load, trial)]

    def _rows(self, fleet: str, load: float, trial: Trial) -> list[dict[str, Any]]:
        """The rows of both tariffs."""
        others = {each: self._of(replace(trial, policy=each), self._other_seeds) for each in OTHERS}
        ours = {tariff: self._of(replace(trial, tariff=tariff), self._other_seeds) for tariff in TARIFFS}
        reached = max(each["attainment"] for each in (*ours.values(), *others.values()))
        split = self._best_split(trial) if reached >= TARGET else None
        rows = []
        for tariff in TARIFFS:
            every = self._of(replace(trial, tariff=tariff), self._seeds)
            row = {"fleet": fleet, "load": load, "tariff": tariff, "rate_per_s": trial.rate_per_s}
            row |= {"every draw": every, OURS: ours[tariff], "others": others}
            if split is not None:
                known = replace(trial, tariff=tariff, policy="latency", split=split)
                row |= {CLAIRVOYANT: self._of(known, self._other_seeds)}
            rows.append(row)
        return rows

    def _of(self, trial: Trial, seeds: range) -> dict[str, Any]:
        """The means over these seeds, and the attainment of each as `draws`."""
        runs = self._runs.of(_draws([trial], seeds))
        means = {name: fmean(each[name] for each in runs) for name in runs[0]}
        return means | {"draws": [each["attainment"] for each in runs]}

    def _capacity(self, model: str) -> float:
        """The requests/s at which one instance of this model just keeps the target."""
        instances = (int(model == BEST), int(model == CHEAP))
        low, high = 1.0, 32.0
        while high - low > 0.02 * high:
            rate = (low + high) / 2
            kept = self._of(Trial(instances, "alike", rate, "latency", 0, self._requests), self._other_seeds)
            low, high = (rate, high) if kept["attainment"] >= TARGET else (low, rate)
        return low

    def _best_split(self, trial: Trial) -> Split | None:
        """The split of the best quality that keeps the target; None if none does."""

        def keeps(split: Split) -> bool:
            known = replace(trial, policy="latency", split=split)
            longer = replace(known, requests=_SUSTAINED * self._requests)
            return all(
                self._of(each, seeds)["attainment"] >= TARGET
                for each, seeds in ((known, self._other_seeds), (longer, range(1)))
            )

        best: Split | None = None
        for loosest in (True, False):
            shares = (share / 5 for share in range(5, -1, -1))
            tried = (
                Split(share, loosest)
                for share in shares
                if best is None or min(share + 0.2, 1.0) > best.share
            )
            kept = next((split for split in tried if keeps(split)), None)
            if kept is None:
                continue
            low, high = kept.share, min(kept.share + 0.2, 1.0)
            while high - low > 0.03:
                share = round((low + high) / 2, 4)
                low, high = (share, high) if keeps(Split(share, loosest)) else (low, share)
            if best is None or low > best.share:
                best = Split(low, loosest)
        return best


def _draws(trials: Sequence[Trial], seeds: range) -> list[Trial]:
    return [replace(trial, seed=seed) for trial in trials for seed in seeds]


def table(report: Mapping[str, Any]) -> str:
    """One line for each case of a `report.json`, and of which commit it is, as Markdown."""
    rows = []
    for row in report["cases"]:
        every, ours, others, known = row["every draw"], row[OURS], row["others"], row.get(CLAIRVOYANT)
        best = max(others, key=lambda name: others[name]["attainment"])
        points, spend = "-", "-"
        if known is not None:
            points = f"{100 * (ours['quality'] - known['quality']):+.1f}"
            spend = f"{ours['usd'] / known['usd']:.2f}"
        rows.append(
            {
                "best model has": row["fleet"],
                "load": f"{row['load']:g}",
                "tariff": row["tariff"],
                "attainment of all draws, least of one": f"{every['attainment']:.1%}, {min(every['draws']):.1%}",
                "with the others' draws": f"{ours['attainment']:.1%}",
                "best of the others": f"{others[best]['attainment']:.1%} (`{best}`)",
                "quality above the clairvoyant's, points": points,
                "spend over its": spend,
            }
        )
    return f"{marked.table_of(rows)}\n\nMeasured at commit `{report['commit']}`."


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with one line on stderr for bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_order", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    for name, count, meaning in (
        ("--seeds", 10, "draws of `cost` (default 10)"),
        ("--other-seeds", 2, "of the rest (default 2)"),
        ("--requests", 1500, "of a run (default 1500)"),
        ("--jobs", pool.cores(), "processes (default: one for each core)"),
    ):
        parser.add_argument(name, type=whole_number, default=count, metavar="N", help=meaning)
    parser.add_argument("--fleet", choices=FLEETS, help="what the best model has (default: each in turn)")
    parser.add_argument("--load", type=float, choices=RATES, help="times the capacity (default: each)")
    args = parser.parse_args(argv)
    try:
        with pool.Processes(args.jobs) as processes:
            experiment = Experiment(args.out, args.seeds, args.other_seeds, args.requests, processes)
            fleets = [args.fleet] if args.fleet else [*FLEETS]
            cases = experiment.cases(fleets, [args.load] if args.load else RATES)
    except WorkloadError as error:
        print(f"benchmarks.cost_order: {error}", file=sys.stderr)
        return 2
    report = {"commit": commit(DECIDING)[:7], "requests": args.requests, "cases": cases}
    (args.out / "report.json").write_text(result_lines(report), encoding="utf-8")
    print(table(report))
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
