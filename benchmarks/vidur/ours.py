"""Runs our simulator over one trace, in a process of its own as `driver.py` runs Vidur:

    python -m benchmarks.vidur.ours TRACE.csv REPLICAS OUTCOME.json

OUTCOME.json has the keys of `driver.py`'s. What the simulator does on the way to each request (its wish is
understood as the gateway would) is in the time of the simulation.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.simulator import Fleet, arrivals, open_fleet, simulate
from benchmarks.vidur.case import PROFILE, read_trace
from benchmarks.workloads.format import WorkloadRequest
from router.config import FleetConfig

POLICY = "round_robin"


def fleet(replicas: int) -> Fleet:
    """`replicas` instances of PROFILE, with no bound on their concurrency but the engine's own."""
    model = PROFILE.partition("@")[0]
    config: dict[str, Any] = {
        "models": [
            {
                "name": model,
                "context_tokens": 131_072,
                "price": {"input_usd_per_mtok": 0.0, "output_usd_per_mtok": 0.0},
            }
        ],
        "instances": [
            {"name": f"replica-{number}", "kind": "emulated", "profile": PROFILE, "serves": {model: model}}
            for number in range(replicas)
        ],
    }
    return open_fleet(FleetConfig.model_validate(config))


def main(trace_file: str, replicas: str, outcome_file: str) -> None:
    """Simulate and write the outcome."""
    started = time.perf_counter()
    requests = [
        WorkloadRequest(
            id=str(number),
            arrival_s=each.arrival_s,
            prompt_tokens=each.prompt_tokens,
            output_tokens=each.output_tokens,
        )
        for number, each in enumerate(read_trace(Path(trace_file)))
    ]
    simulated = fleet(int(replicas))
    ready, ready_cpu = time.perf_counter(), time.process_time()
    result = simulate(simulated, arrivals(requests, simulated, policy=POLICY))
    ended, ended_cpu = time.perf_counter(), time.process_time()
    ttft_s = result.columns["ttft_s"]
    if not np.isfinite(ttft_s).all():
        raise SystemExit("not every request got an answer: use a lower rate")
    outcome = {
        "setup_s": ready - started,
        "simulation_s": ended - ready,
        "simulation_cpu_s": ended_cpu - ready_cpu,
        "ttft_s": ttft_s,
        "e2e_s": result.columns["e2e_s"],
    }
    Path(outcome_file).write_bytes(orjson.dumps(outcome, option=orjson.OPT_SERIALIZE_NUMPY))


if __name__ == "__main__":
    main(*sys.argv[1:])
