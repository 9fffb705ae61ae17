"""Runs Vidur 0.0.26 over one trace. It runs in Vidur's own environment, which has none of our packages:

    .vidur/bin/python -I benchmarks/vidur/driver.py CASE.json OUTCOME.json

CASE.json is what `benchmarks.vidur.case.as_vidur` makes. OUTCOME.json gets the seconds that set-up and
simulation took and, by request, the seconds to the first token and to the end.

Vidur downloads measured operator times, trains regressors on them and then reads step times from tables of
their predictions. Here the tables themselves are given (`Given`), so nothing is downloaded or trained.
What Vidur can leave out is left out (`settings`): all metrics, plots, JSON and Chrome traces, Weights & Biases;
step times are looked up by its C++ code, the faster of its two ways.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from vidur.config import (  # type: ignore[import-not-found]
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    RandomForrestExecutionTimePredictorConfig,
    ReplicaConfig,
    RoundRobinGlobalSchedulerConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    TraceRequestGeneratorConfig,
)
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry  # type: ignore[import-not-found]
from vidur.execution_time_predictor.random_forrest_execution_time_predictor import (  # type: ignore[import-not-found]
    RandomForrestExecutionTimePredictor,
)
from vidur.simulator import Simulator  # type: ignore[import-not-found]
from vidur.types import ExecutionTimePredictorType  # type: ignore[import-not-found]


class Given(RandomForrestExecutionTimePredictor):  # type: ignore[misc]
    """Vidur's predictor over a table that is given: `operators` by name, each a list of (*key, milliseconds)."""

    operators: dict[str, list[list[float]]]

    def _load_predictions_from_hf(self) -> dict[str, dict[tuple[int, ...], float]]:
        return {
            name: {tuple(int(part) for part in key): value for *key, value in rows}
            for name, rows in self.operators.items()
        }


def settings(case: dict[str, Any], folder: Path) -> Any:
    """Vidur's configuration of the case; its files go below `folder`."""
    return SimulationConfig(
        log_level="error",
        cluster_config=ClusterConfig(
            num_replicas=case["replicas"],
            replica_config=ReplicaConfig(
                model_name=case["model"],
                num_pipeline_stages=1,
                tensor_parallel_size=1,
                device=case["device"],
                network_device=case["node"],
            ),
            cache_config=CacheConfig(
                block_size=case["block_tokens"], num_blocks=case["blocks"], watermark_blocks_fraction=0.0
            ),
            global_scheduler_config=RoundRobinGlobalSchedulerConfig(),
            replica_scheduler_config=SarathiSchedulerConfig(
                batch_size_cap=case["max_seqs"], chunk_size=case["max_batched_tokens"]
            ),
        ),
        request_generator_config=TraceRequestGeneratorConfig(
            trace_file=case["trace"],
            date=case["date"],
            prefill_scale_factor=1.0,
            decode_scale_factor=1.0,
            time_scale_factor=1.0,
            max_tokens=case["max_request_tokens"],
        ),
        execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(
            kv_cache_prediction_granularity=case["kv_step_tokens"],
            prediction_max_prefill_chunk_size=case["max_batched_tokens"],
            prediction_max_batch_size=case["max_seqs"],
            prediction_max_tokens_per_request=case["max_request_tokens"],
            attention_decode_batching_overhead_fraction=0.0,
            use_native_execution_time_predictor=True,
            cache_dir=str(folder / "cache"),
        ),
        metrics_config=MetricsConfig(
            write_metrics=False,
            write_json_trace=False,
            enable_chrome_trace=False,
            store_plots=False,
            store_request_metrics=False,
            store_batch_metrics=False,
            store_utilization_metrics=False,
            output_dir=str(folder / "output"),
        ),
    )


def main(case_file: str, outcome_file: str) -> None:
    """Simulate and write the outcome."""
    started = time.perf_counter()
    case = json.loads(Path(case_file).read_text())
    Given.operators = case.pop("operators")
    kind = ExecutionTimePredictorType.RANDOM_FORREST
    ExecutionTimePredictorRegistry.unregister(kind)
    ExecutionTimePredictorRegistry.register(kind, Given)
    simulator = Simulator(settings(case, Path(outcome_file).parent))
    requests = [event._request for _, event in simulator._event_queue]
    ready, ready_cpu = time.perf_counter(), time.process_time()
    simulator.run()
    ended, ended_cpu = time.perf_counter(), time.process_time()
    arrived = np.array([request.arrived_at for request in requests])
    outcome = {
        "setup_s": ready - started,
        "simulation_s": ended - ready,
        "simulation_cpu_s": ended_cpu - ready_cpu,
        "ttft_s": (np.array([request.prefill_completed_at for request in requests]) - arrived).tolist(),
        "e2e_s": (np.array([request.completed_at for request in requests]) - arrived).tolist(),
        "restarts": sum(request.num_restarts for request in requests),
    }
    Path(outcome_file).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
