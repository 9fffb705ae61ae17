"""The report as files for other tools: CSV, and the JSON of vLLM's benchmark."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from benchmarks.compare.cells import MEASURES

_RUN_COLUMNS = (
    *("name", "policy", "rate_per_s", "seed", "measured_rate_per_s", "duration_s", "requests", "complete"),
    *("offered_with_slo", "met", "prompt_tokens", "output_tokens", "cost_usd"),
    *("timed_out_before_decoding", "out_of_budget_before_decoding", "budget_overruns"),
    *("budget_overrun_usd_max", "retried", "hedged", "peak_in_flight", "wall_s", "events"),
)
_LOADS = ("in_flight", "running", "waiting", "kv_usage")

Rows = Iterator[Sequence[Any]]


def write_csvs(folder: Path, report: Mapping[str, Any]) -> None:
    """Write runs.csv (one line a run), cells.csv (a policy at a rate, with intervals), outcomes.csv (counts),
    curves.csv (quantiles of latency) and timeline.csv (load of instances) into `folder`. Column names have units; unknown is
    an empty cell."""
    for name, rows in (
        ("runs", _runs(report)),
        ("cells", _cells(report)),
        ("outcomes", _outcomes(report)),
        ("curves", _curves(report)),
        ("timeline", _timeline(report)),
    ):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


def _runs(report: Mapping[str, Any]) -> Rows:
    yield [*_RUN_COLUMNS, *MEASURES]
    for run in report["runs"]:
        yield [*(run.get(name) for name in _RUN_COLUMNS), *(measure(run) for measure in MEASURES.values())]


def _cells(report: Mapping[str, Any]) -> Rows:
    yield [
        *("policy", "rate_per_s", "seeds", "requests"),
        *(column for name in MEASURES for column in (name, f"{name}_ci95_half_width")),
    ]
    for cell in report["cells"]:
        figures = [cell["measures"][name] for name in MEASURES]
        yield [
            *(cell[name] for name in ("policy", "rate_per_s", "seeds", "requests")),
            *(value for figure in figures for value in (figure["mean"], figure["half_width"])),
        ]


def _outcomes(report: Mapping[str, Any]) -> Rows:
    yield ["name", "policy", "rate_per_s", "seed", "outcome", "requests"]
    for run in report["runs"]:
        for outcome, count in run["outcomes"].items():
            yield [run["name"], run["policy"], run["rate_per_s"], run["seed"], outcome, count]


def _curves(report: Mapping[str, Any]) -> Rows:
    names = ("ttft_s", "tpot_s", "e2e_s")
    yield ["policy", "rate_per_s", "quantile", *names]
    for cell in report["cells"]:
        points = list(zip(*(cell["curves"][name] for name in names), strict=True))
        for index, values in enumerate(points):
            yield [cell["policy"], cell["rate_per_s"], f"{index / (len(points) - 1):g}", *values]


def _timeline(report: Mapping[str, Any]) -> Rows:
    yield ["name", "policy", "rate_per_s", "seed", "at_s", "instance", *_LOADS]
    for run in report["runs"]:
        timeline = run["timeline"]
        if timeline is None:
            continue
        for instance, loads in timeline["instances"].items():
            for at_s, *values in zip(timeline["at_s"], *(loads[name] for name in _LOADS), strict=True):
                yield [run["name"], run["policy"], run["rate_per_s"], run["seed"], at_s, instance, *values]


def write_vllm(folder: Path, report: Mapping[str, Any]) -> None:
    """Each run in the shape of `vllm bench serve --save-result`: one file, named after the run."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in report["runs"]:
        path = folder / f"{run['name'].replace('/', '_')}.json"
        path.write_bytes(orjson.dumps(vllm_json(run, report), option=orjson.OPT_INDENT_2))


def vllm_json(run: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """One run of a report. Names and definitions are those of vLLM 0.32's `vllm/benchmarks/serve.py` without `--save-detailed`:
    times in milliseconds, rates over the whole duration (the drain included, unlike our own goodput). Our own figures start
    with `headway_`. Without an SLO `request_goodput` is None, as in vLLM without `--goodput`."""
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
