"""`headway reproduce helix --place`: Headway's own placements on Helix's clusters, beside the published ones.

Both are measured alike: decode tokens per second of the offline simulation, on the published seed, which the search does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from benchmarks.compare import pool
from benchmarks.pipelines.planning import Candidate, Problem, best_placement
from benchmarks.pipelines.published import THROUGHPUT, Published
from benchmarks.pipelines.simulate import OFFLINE_S
from benchmarks.terminal import aligned
from policies.placement.max_flow import max_flow

#: Section and command of the published figure of each cluster and model.
_PUBLISHED = {
    ("single24", "llama30b"): ("6.3", "step3_simulation.py helix llama30b offline"),
    ("single24", "llama70b"): ("6.3", "step3_simulation.py helix llama70b offline"),
    ("geo24", "llama30b"): ("6.4", "step3_simulation.py helix llama30b offline"),
    ("geo24", "llama70b"): ("6.4", "step3_simulation.py helix llama70b offline"),
    ("het42", "llama70b"): ("6.5", "step3_simulation.py helix offline"),
}
CLUSTERS = tuple(dict.fromkeys(cluster for cluster, _ in _PUBLISHED))


@dataclass(frozen=True, slots=True)
class PlacementRow:
    """Helix's placement and ours, in decode tokens per second. `with_max_flow`: our layers and links, requests by a maximum
    flow as Helix divides them. `cpu_s` is the time of all processes."""

    cluster: str
    model: str
    published: float
    ours: float
    with_max_flow: float
    simulations: int
    cpu_s: float
    wall_s: float
    plan: str

    @property
    def gain(self) -> float:
        return self.ours / self.published - 1


def placement_rows(
    folder: Path,
    clusters: Sequence[str] | None,
    seed: int,
    processes: int,
    cpu_s: float,
    progress: Callable[[str], None],
) -> Iterator[PlacementRow]:
    """A row for each cluster and model, as it is found. `cpu_s` of CPU time for each."""
    published = Published(folder)
    with pool.Executor(processes) as executor:
        for (cluster, model), key in _PUBLISHED.items():
            if clusters is not None and cluster not in clusters:
                continue
            progress(f"placing {model} on {cluster}")
            machines, of_model = published.cluster(cluster, model), published.models[model]
            throughput = of_model.throughput(machines.counts())
            problem = Problem(machines, of_model.model, throughput, published.lengths)
            began_s = monotonic()
            found = best_placement(problem, cpu_s, executor, processes, seed)
            wall_s = monotonic() - began_s
            placement = found.candidate.placement
            same = Candidate("", placement, max_flow(placement, machines, of_model.model, throughput))
            score = partial(problem.score, seconds=OFFLINE_S, seed=seed)
            ours, with_max_flow = executor.map(score, (found.candidate, same))
            yield PlacementRow(
                cluster,
                model,
                float(published.expected[key][THROUGHPUT]),
                round(ours, 1),
                round(with_max_flow, 1),
                found.simulations,
                round(found.cpu_s),
                round(wall_s),
                found.candidate.name,
            )


def table(rows: Sequence[PlacementRow]) -> list[str]:
    """The rows as text, and the plans."""
    text = [("cluster", "model", "Helix", "ours", "gain", "with max flow", "simulations", "CPU s", "wall s")]
    text += [
        (
            row.cluster,
            row.model,
            f"{row.published:.1f}",
            f"{row.ours:.1f}",
            f"{row.gain:+.1%}",
            f"{row.with_max_flow:.1f}",
            str(row.simulations),
            f"{row.cpu_s:.0f}",
            f"{row.wall_s:.0f}",
        )
        for row in rows
    ]
    return [*aligned(text), "", *(f"{row.cluster} {row.model}: {row.plan}" for row in rows)]
