"""The throughput table as a source: on a made table whose truth is known, and on the published one where HEADWAY_DATA has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.calibrate.measured import Split, Study, splitter
from benchmarks.calibrate.profile import read_profiles
from benchmarks.calibrate.sources import SOURCES
from benchmarks.calibrate.sources.vllm_throughput import FILE, OUTPUT_TOKENS, Curve, fit_curve, rows
from benchmarks.workloads.format import WorkloadError
from tests.data_files import put
from tests.unit.benchmarks_calibrate.made import calibrate

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1028)
#: Seconds of a step on the A100 and seconds that each sequence adds, by model and number of GPUs.
TRUTH = {("Small-1b", 1): (0.008, 0.001), ("Large-7b", 1): (0.016, 0.004), ("Large-7b", 2): (0.018, 0.0025)}
SLOWER = 1.8


def published(
    data: Path,
    slower: float = SLOWER,
    change: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda row: row,
) -> Path:
    """A table in the published form: every model's V100 is slower by the same factor."""
    made = []
    for (model, gpus), (t0_s, t1_s) in TRUTH.items():
        for batch in BATCHES:
            together = min(batch, 256)
            throughput = together / (t0_s + t1_s * together)
            row = {
                "model": model,
                "engine": "vLLM",
                "nr_gpus": gpus,
                "batch_size": batch,
                "throughput_a100": throughput,
                "throughput_tesla": throughput / slower,
                "status_a100": "ok",
                "status_tesla": "ok",
            }
            made.append(change(row))
    put(data / FILE, made)
    return data


def studies(data: Path, held_out: tuple[str, ...] | None = None) -> dict[str, Study]:
    return {study.name: study for study in SOURCES["vllm_throughput"](data, splitter(None, held_out))}


@pytest.mark.parametrize("truth", [Curve(0.01, 0.002, 256), Curve(0.05, 0.001, 64), Curve(0.03, 0.008, 4)])
def test_the_curve_is_found_again(truth: Curve) -> None:
    found = fit_curve({batch: truth.batch_s(batch) for batch in BATCHES})
    assert found == pytest.approx(truth)


def test_every_model_number_and_kind_of_gpus_is_an_engine(tmp_path: Path) -> None:
    found = studies(published(tmp_path))
    assert list(found) == [
        "large-7b@a100-80g",
        "large-7b@v100-32g",
        "large-7b@2xa100-80g",
        "large-7b@2xv100-32g",
        "small-1b@a100-80g",
        "small-1b@v100-32g",
    ]
    study = found["large-7b@a100-80g"]
    assert list(study.levels) == [str(batch) for batch in BATCHES]
    assert study.split == Split(("1", "4", "8", "32", "64", "256", "512"), ("2", "16", "128", "1028"))
    assert study.groups == ("all", "a100-80g", "large-7b")
    assert "terms of decode are assumptions" in study.notes[0]
    level = study.levels["16"]
    assert len(level.requests) == 16
    times_s = [each.e2e_s for each in level.requests]
    assert times_s == [None] * 15 + [pytest.approx(OUTPUT_TOKENS * (0.016 + 0.004 * 16))]


def test_curve_and_ratio_predict_the_held_out_batches(tmp_path: Path) -> None:
    found = studies(published(tmp_path))
    for study in found.values():
        assert study.checks["curve"] == pytest.approx([1] * 4)
    assert found["small-1b@v100-32g"].checks["ratio"] == pytest.approx([1] * 4)
    assert "ratio" not in found["small-1b@a100-80g"].checks
    assert found["large-7b@2xv100-32g"].checks["ratio"] == ()  # no other model has two GPUs


def test_nothing_fitted_looks_at_the_held_out_batches(tmp_path: Path) -> None:
    before = studies(published(tmp_path), ("16", "1028"))
    factors = {16: 0.5, 1028: 0.5}

    def slower(row: dict[str, Any]) -> dict[str, Any]:
        factor = factors.get(row["batch_size"], 1.0)
        return {**row, **{name: row[name] * factor for name in ("throughput_a100", "throughput_tesla")}}

    after = studies(published(tmp_path, change=slower), ("16", "1028"))
    for name, study in after.items():
        assert (study.first, study.limits) == (before[name].first, before[name].limits)
        assert study.checks["curve"] == pytest.approx([0.5, 0.5])


def test_equal_columns_are_reported(tmp_path: Path) -> None:
    assert not any("copy" in note for study in studies(published(tmp_path)).values() for note in study.notes)
    for study in studies(published(tmp_path, slower=1.001)).values():
        assert any("may be a copy of the other" in note for note in study.notes)


def test_rows_that_did_not_run_and_short_engines_are_left_out(tmp_path: Path) -> None:
    def failed(row: dict[str, Any]) -> dict[str, Any]:
        return {
            **row,
            "status_tesla": "oom" if row["model"] == "Large-7b" and row["batch_size"] > 2 else "ok",
        }

    assert list(studies(published(tmp_path, change=failed))) == ["small-1b@a100-80g", "small-1b@v100-32g"]
    published(tmp_path, change=lambda row: {**row, "status_a100": "oom"})
    with pytest.raises(WorkloadError, match="no engine with three batch sizes"):
        studies(tmp_path)
    published(tmp_path, change=lambda row: {**row, "batch_size": 1})
    with pytest.raises(WorkloadError, match="Small-1b has batch size 1 twice"):
        studies(tmp_path)


def test_the_command_fits_reports_and_writes_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--source", "vllm_throughput", "--data", str(published(tmp_path)), "--test", "2,16,128")
    out = tmp_path / "out"
    assert calibrate(*words, "--fit", "1,4,8,32,64", "--evaluations", "30", "--out", str(out), "--json") == 0
    report = orjson.loads(capsys.readouterr().out)
    assert report["groups"]["all"]["engine model"]["count"] == 3 * len(report["results"])
    assert report["groups"]["all"]["engine model"]["mean"] < 0.05
    assert report["groups"]["v100-32g"]["ratio"]["median"] == pytest.approx(0, abs=1e-9)
    assert list(report["results"][0]["held_out"]) == ["e2e"]  # neither TTFT nor TPOT was measured
    assert report["results"][0]["levels"][0]["queue_peak"] is None
    shown = (out / "report.txt").read_text()
    assert "held out, E2E: median, mean and 90th percentile" in shown
    found = read_profiles(out / "profile.yaml")
    slow, fast = (found[f"large-7b@{kind}"] for kind in ("v100-32g", "a100-80g"))
    assert slow.prefill_s(200) / fast.prefill_s(200) == pytest.approx(SLOWER, rel=0.1)
    assert not fast.chunked_prefill


@pytest.mark.skipif(not os.environ.get("HEADWAY_DATA"), reason="needs the published table")
def test_the_published_table() -> None:
    data = Path(os.environ["HEADWAY_DATA"])
    assert len(list(rows(data))) == 701
    found = studies(data)
    assert len(found) == 128
    errors = [abs(ratio - 1) for study in found.values() for ratio in study.checks["curve"]]
    assert sum(errors) / len(errors) == pytest.approx(0.021, abs=0.001)
    copies = [name for name, study in found.items() if any("copy" in note for note in study.notes)]
    assert copies == ["wizardcoder-33b@4xa100-80g", "wizardcoder-33b@4xv100-32g"]
