"""What the published cases leave open, and is assumed here: the GPU, the stage times and the requests.

The cases fit 8 x A100-40GB only (docs/reproductions.md). A request makes 20 tokens, one at a time. A stage reads its
weights once for each token at the A100's data-sheet bandwidth times the share that `backends.engine.hardware` has for
it. A request's deadline is `slo_scale` times what it takes on one GPU. Requests arrive as a Poisson process and ask
every model alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.engine.hardware import ATTENTION_S, HARDWARE, HOST_S
from benchmarks.reproduce.alpaserve_cases import Case
from benchmarks.workloads.published import Number, Record, table
from policies.placement.outcomes import Evaluator
from policies.placement.simulation import Arrivals
from policies.placement.types import Cluster, GpuKind, Pool, Shape

#: NVIDIA's data sheet of the A100-40GB (SXM).
_READ_BYTES_PER_S = 1.555e12 * HARDWARE["a100-80g"].reached.memory
#: Decimal gigabytes of weights on each GPU. `large` and `regular` are coherent from 39.85 to below 40.22; the published
#: `twentyone` placements take up to 49.06, which an A100-40GB does not have.
BUDGET_GB = {"large": 40.0, "regular": 40.0, "twentyone": 49.1}
#: Decoder layers, from the models' public config.json.
_LAYERS = {
    "llama-2-70b": 80,
    "falcon-40b": 60,
    "llama-2-13b": 40,
    "llama-2-7b": 32,
    "falcon-7b": 32,
    "gptj-6b": 28,
}
_TRACES = {"code": "code.csv.gz", "conversation": "conv.csv.gz"}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What differs from the default assumptions. `trace`: arrivals of a stretch of the named Azure trace, drawn out
    to the mean gap. `idle`: nobody asks the first model. `layers`: stage times have the constant times of each layer
    and its all-reduces too."""

    name: str
    trace: bool = False
    idle: bool = False
    layers: bool = False


DEFAULT = Assumptions("default")
IDLE = Assumptions("nobody asks model 0", idle=True)
BURSTS = Assumptions("the trace's own arrivals, layer times", trace=True, layers=True)


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests of one case and seed, and how they are simulated."""

    cluster: Cluster
    arrivals: Arrivals
    case: Case
    assumptions: Assumptions

    @property
    def kind(self) -> GpuKind:
        """The only kind of GPU."""
        return self.cluster.pools[0].kind

    def evaluator(self) -> Evaluator:
        """A new one, which remembers nothing."""
        return Evaluator(self.arrivals, self.stage_s)

    def stage_s(self, model: int, shape: Shape) -> float:
        """Seconds of one stage for one request."""
        return _stage_s(self.case, self.assumptions, model, shape)


def workload(case: Case, assumptions: Assumptions, seed: int, requests: int, data: Path) -> Workload:
    """The requests of a case, drawn by a seed. Raises WorkloadError if a trace is needed and not there."""
    budget_gb = BUDGET_GB[case.model_set]
    kind = GpuKind("a100-40g" if budget_gb <= 40 else f"gpu-{budget_gb:g}g", budget_gb)
    count = len(case.models)
    draw = np.random.default_rng(seed)
    if assumptions.trace:
        arrival_s = _from_trace(data, case, requests, draw)
    else:
        arrival_s = np.cumsum(draw.exponential(case.gap_s, requests))
    asked = draw.integers(int(assumptions.idle), count, requests)
    one = Shape(kind)
    deadline_s = [case.slo_scale * _stage_s(case, assumptions, model, one) for model in range(count)]
    arrivals = Arrivals(arrival_s.tolist(), asked.tolist(), [deadline_s[model] for model in asked], count)
    return Workload(Cluster((Pool(kind, case.gpus),)), arrivals, case, assumptions)


def _stage_s(case: Case, assumptions: Assumptions, model: int, shape: Shape) -> float:
    one = case.models[model]
    step_s = one.weights_gb * 1e9 / shape.tensor / _READ_BYTES_PER_S
    if assumptions.layers:
        a100 = HARDWARE["a100-80g"]
        all_reduce_s = a100.links[shape.tensor].latency_s if shape.tensor > 1 else 0.0
        layer_s = a100.small.matmul_s + a100.small.elementwise_s + ATTENTION_S + 2 * all_reduce_s
        step_s += HOST_S + _LAYERS[one.name] * layer_s
    return case.output_tokens * step_s / shape.pipeline


class _Request(Record):
    arrival_s: Number


def _from_trace(data: Path, case: Case, requests: int, draw: np.random.Generator) -> NDArray[np.float64]:
    rows = table(data / "azure_llm_2023" / _TRACES[case.trace], _Request)
    times = np.array([row.arrival_s for row in rows])
    first = int(draw.integers(0, len(times) - requests))
    stretch: NDArray[np.float64] = times[first : first + requests] - times[first]
    stretch *= case.gap_s * requests / stretch[-1]
    return stretch
