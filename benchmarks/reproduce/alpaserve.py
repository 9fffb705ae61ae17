"""`headway reproduce alpaserve`: each published placement, whether AlpaServe's own method gives it, and what
Headway's planner makes of the same requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.checks import add_number
from benchmarks.reproduce.alpaserve_cases import Case, read
from benchmarks.reproduce.alpaserve_methods import Reproduction, reproduce
from benchmarks.reproduce.alpaserve_planners import Against, Draw, against, draws
from benchmarks.reproduce.alpaserve_workload import DEFAULT, workload
from benchmarks.terminal import aligned, print_json, progress_bar
from benchmarks.workloads.format import WorkloadError

#: Sets whose cases must be reproduced. The published `twentyone` placements are none that the method can give.
_REPRODUCIBLE = ("large", "regular")


@dataclass(frozen=True, slots=True)
class Row:
    """One case. An infeasible one has nothing to compare planners against."""

    case: Case
    reproduction: Reproduction
    against: Against | None

    @property
    def reproduced(self) -> bool:
        """Whether some seed gives the published result."""
        return bool(self.reproduction.seeds)

    @property
    def within_bound(self) -> bool:
        """Whether it is reproduced where that is possible, and Headway's plan is at least as good on the same requests."""
        possible = self.case.model_set in _REPRODUCIBLE or self.against is None
        return (self.reproduced or not possible) and (self.against is None or self.against.gap >= 0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_number(parser, "--seeds", 20, "N", "arrival seeds to try")
    add_number(parser, "--requests", 1000, "N", "requests of each")
    add_number(parser, "--draws", 3, "N", "workloads to compare planners on")
    add_number(parser, "--planning-requests", 4000, "N", "requests of each")
    parser.add_argument(
        "--evolved", action="store_true", help="compare AlpaServe's evolutionary search too (minutes)"
    )
    parser.add_argument("--cases", type=int, nargs="+", metavar="N", help="only these cases")


def run(args: argparse.Namespace) -> int:
    """Prints all rows. Exit status 1 if one is out of its bound."""
    cases = read(args.data)
    if unknown := sorted(set(args.cases or ()) - {case.number for case in cases}):
        raise WorkloadError(f"--cases: no case {unknown[0]}")
    chosen = [case for case in cases if args.cases is None or case.number in args.cases]
    with progress_bar() as bar:
        rows = list(rows_of(bar.track(chosen, description="reproducing AlpaServe"), args))
    if args.json:
        print_json([_as_json(row) for row in rows])
    else:
        print("\n".join(table(rows)))
    return 0 if all(row.within_bound for row in rows) else 1


def rows_of(cases: Iterable[Case], args: argparse.Namespace) -> Iterator[Row]:
    """The row of each case. Planners are run once for cases that share their requests."""
    data: Path = args.data
    drawn: dict[tuple[str, float, float], list[Draw]] = {}
    for case in cases:
        compared = None
        if case.groups:
            if case.workload not in drawn:
                drawn[case.workload] = draws(case, data, args.draws, args.planning_requests, args.evolved)
            kind = workload(case, DEFAULT, 0, 1, data).kind
            compared = against(case.published(kind), drawn[case.workload])
        yield Row(case, reproduce(case, data, args.seeds, args.requests), compared)


def _as_json(row: Row) -> dict[str, object]:
    case = row.case
    return {
        "case": case.number,
        **{name: getattr(case, name) for name in ("algorithm", "model_set", "gap_s", "trace", "slo_scale")},
        "published": in_words(case),
        "reproduced": row.reproduced,
        "within_bound": row.within_bound,
        "reproduction": asdict(row.reproduction),
        "against": None if row.against is None else asdict(row.against),
    }


def in_words(case: Case) -> str:
    """The published groups as (tensor,pipeline) with their models."""
    groups = (f"({each.tensor},{each.pipeline}):{','.join(map(str, each.models))}" for each in case.groups)
    return " ".join(groups) or "NOT FEASIBLE"


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as text: what is reproduced, what planners attain, and the differences explained."""
    text = ["Published placements and AlpaServe's method", ""]
    text += aligned([_METHOD, *map(_method, rows)])
    text += ["", "Attainment in simulation, %", ""]
    text += aligned(
        [_PLANNERS, *(_planners(row.case, row.against) for row in rows if row.against is not None)]
    )
    text += ["", "What other seeds give", ""]
    text += [
        f"{row.case.number:>4}  {'; '.join(row.reproduction.reasons)}"
        for row in rows
        if row.reproduction.reasons
    ]
    every = [set(row.reproduction.seeds) for row in rows if row.case.model_set == "large"]
    common = sorted(set.intersection(*every)) if every else []
    seeds = ", ".join(map(str, common)) or "none"
    reproduced = sum(row.reproduced for row in rows)
    text += ["", f"{reproduced} of {len(rows)} reproduced. Seeds that alone give all `large` cases: {seeds}."]
    outside = ", ".join(str(row.case.number) for row in rows if not row.within_bound)
    text.append(f"Out of bound: {outside}." if outside else "Every row is within its bound.")
    return text


_METHOD = ("case", "algorithm", "set", "gap s", "trace", "SLO x", "seeds", "first", "published, assumptions")
_PLANNERS = (
    "case", "published", "AlpaServe", "beam", "split", "evolved", "random", "exhaustive", "bound", "Headway", "gap",
    "unseen: published", "Headway", "looked at", "seconds",
)  # fmt: skip


def _method(row: Row) -> tuple[str, ...]:
    case, found = row.case, row.reproduction
    assumptions = "" if found.assumptions == DEFAULT.name or not found.seeds else f" [{found.assumptions}]"
    return (
        str(case.number),
        case.algorithm,
        case.model_set,
        f"{case.gap_s:g}",
        case.trace,
        f"{case.slo_scale:g}",
        f"{len(found.seeds)}/{found.tried}",
        str(found.seeds[0]) if found.seeds else "-",
        f"{in_words(case)}{assumptions}",
    )


def _planners(case: Case, one: Against) -> tuple[str, ...]:
    theirs = one.attained
    shares = (
        one.published, theirs.alpaserve, theirs.beam, theirs.split, theirs.evolved, theirs.random,
        theirs.exhaustive, theirs.bound, theirs.headway, one.gap, *one.held_out,
    )  # fmt: skip
    cells = ["-" if share is None else f"{100 * share:.1f}" for share in shares]
    return (str(case.number), *cells, f"{theirs.evaluations:.0f}", f"{theirs.seconds:.2f}")
