"""Runs in the shape of vLLM's benchmark (`vllm bench serve --save-result`), for tools that read that.

Names and definitions are those of vLLM 0.32's `vllm/benchmarks/serve.py` without `--save-detailed`: times in milliseconds, rates over
the whole duration (the drain included, unlike our own goodput). Our own figures start with `headway_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """One file a run, named after it."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in report["runs"]:
        path = folder / f"{run['name'].replace('/', '_')}.json"
        path.write_bytes(orjson.dumps(vllm_json(run, report), option=orjson.OPT_INDENT_2))


def vllm_json(run: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """One run of a report. Without an SLO `request_goodput` is None, as in vLLM without `--goodput`."""
    duration_s = run["duration_s"]

    def a_second(amount: float) -> float | None:
        return amount / duration_s if duration_s else None

    started_at = run.get("started_at")
    tokens_in, tokens_out = run["prompt_tokens"], run["complete_output_tokens"]
    return {
        "date": None if started_at is None else f"{datetime.fromtimestamp(started_at, UTC):%Y%m%d-%H%M%S}",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": run["name"],
        "model_id": report.get("model"),
        "tokenizer_id": None,
        "num_prompts": run["requests"],
        "request_rate": run["rate_per_s"],
        "burstiness": None,
        "max_concurrency": None,
        "duration": duration_s,
        "completed": run["complete"],
        "failed": run["requests"] - run["complete"],
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": a_second(run["complete"]),
        "request_goodput": a_second(run["met"]) if run["offered_with_slo"] else None,
        "output_throughput": a_second(tokens_out),
        "total_token_throughput": a_second(tokens_in + tokens_out),
        "max_output_tokens_per_s": None,
        "max_concurrent_requests": run["peak_in_flight"],
        **_latency("ttft", run["ttft_s"]),
        **_latency("tpot", run["tpot_s"]),
        **_latency("itl", run["itl_s"]),
        **_latency("e2el", run["e2e_s"]),
        "headway_policy": run["policy"],
        "headway_seed": run["seed"],
        "headway_attainment": run["attainment"],
        "headway_goodput_per_s": run["goodput_per_s"],
        "headway_cost_usd": run["cost_usd"],
        "headway_quality_mean": run["quality_mean"],
        "headway_outcomes": run["outcomes"],
        **{
            f"headway_scheduling_overhead_{key}_ms": _milliseconds((run["decision_s"] or {}).get(key))
            for key in ("mean", "p50", "p99")
        },
    }


def _latency(metric: str, summary: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        f"mean_{metric}_ms": _milliseconds(summary["mean"]),
        f"median_{metric}_ms": _milliseconds(summary["p50"]),
        f"std_{metric}_ms": _milliseconds(summary["std"]),
        **{f"p{share}_{metric}_ms": _milliseconds(summary[f"p{share}"]) for share in (50, 90, 95, 99)},
    }


def _milliseconds(value_s: float | None) -> float | None:
    return None if value_s is None else 1000 * value_s
