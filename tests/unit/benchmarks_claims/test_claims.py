"""The tables in the documentation are those of the results file, and hold when they are measured anew."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.claims import __main__ as command
from benchmarks.claims import experiments
from benchmarks.claims.claims import CLAIMS, DRAWINGS, RESULTS, SEEDS, TABLES
from benchmarks.claims.tables import (
    BLOCK,
    LATENCIES,
    PRICED,
    all_policies,
    block,
    by_rate,
    differences,
    end_to_end,
    measured,
    provenance,
)
from benchmarks.pages.marked import replaced
from benchmarks.training import defaults, train

ROOT = Path(__file__).parents[3]


def report(attained: float, policy: str = "slo") -> dict[str, Any]:
    """What is read of a report of one policy at 40/s, in two draws: its measures are `attained` too."""
    interval = {"mean": attained, "half_width": 0.01}
    measures = dict.fromkeys((*LATENCIES, *PRICED, *BLOCK), interval)
    capacity = {
        "policy": policy,
        "bound": "at_least",
        "low_per_s": 40.0,
        "high_per_s": None,
        "missed_per_s": [],
    }
    runs = [
        {
            **{"policy": policy, "rate_per_s": 40.0, "seed": seed, "attainment": attained + 0.1 * seed},
            **{"quality_mean": 0.5, "cost_usd_per_request": 0.003, "ttft_s": {"p99": 2.0}},
        }
        for seed in (1, 0)
    ]
    oracle = {
        "rate_per_s": 40.0,
        "clairvoyant_attainment": {"mean": 0.9},
        "quality_cost": [
            {"quality": quality, "cost_usd_per_request": usd} for quality, usd in ((0.4, 0.001), (0.6, 0.003))
        ],
    }
    return {
        "capacity": [capacity],
        "cells": [{"policy": policy, "rate_per_s": 40.0, "measures": measures}],
        "runs": runs,
        "oracle": [oracle],
        "baseline": policy,
    }


def test_every_page_shows_what_the_results_file_has(tmp_path: Path) -> None:
    shown = {table.page for table in TABLES} | DRAWINGS.keys()
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "predictors").mkdir()
    (tmp_path / "predictors/defaults").symlink_to(ROOT / "predictors/defaults")
    results = json.loads((ROOT / RESULTS).read_text())
    assert results.keys() == CLAIMS.keys()
    command.write(tmp_path)
    for page in shown:
        assert (tmp_path / page).read_text() == (ROOT / page).read_text()
    for name, claim in CLAIMS.items():
        assert tuple(results[name]["policies"]) == claim.policies
        for found in results[name]["policies"].values():
            assert {rate: len(each["draws"]) for rate, each in found["rates"].items()} == {
                str(rate): SEEDS for rate in claim.rates
            }
            for rate, best in results[name].get("oracle", {}).items():
                assert found["rates"][rate]["draws"][0] <= best, (name, rate)
    (tmp_path / "docs/pickers.md").write_text("no marks")
    with pytest.raises(ValueError, match="no marks"):
        command.write(tmp_path)


def test_every_claim_has_its_oracles() -> None:
    """A measurement of some policies alone keeps the others' figures, so one without oracles leaves gaps."""
    results = json.loads((ROOT / RESULTS).read_text())
    for name, claim in CLAIMS.items():
        assert results[name]["oracle"].keys() == {f"{rate:g}" for rate in claim.rates}, name
        if "quality_mean" in claim.measures:
            for policy, found in results[name]["policies"].items():
                for cell in found["rates"].values():
                    assert cell.get("spend_over_least", 0.0) > 0.0, (name, policy)


def test_figures_become_rows() -> None:
    figures = measured(report(0.85))
    assert figures["policies"]["slo"]["rates"]["40"]["draws"] == [0.85, 0.95]
    rows = by_rate(figures, times_at="40").splitlines()
    assert rows[2] == "| `slo` | 85.0 % | at least 40/s | 0.85 s | 0.85 s |"
    assert rows[3].startswith("| a clairvoyant schedule (one draw) | 90.0 % |")
    assert rows[-1].endswith("at most: 1.0 at 40/s.")
    shown, detailed = {"made": (40,)}, {"made": ("latency", "slo")}
    rows = end_to_end({"made": figures}, shown, detailed).splitlines()
    assert rows[2] == (
        "| `made`, 40/s | `slo` | **85.0 ±1.0 %** | 5.0 | 0.850 / 0.850 | 0.850 / 0.850 | - | - | - |"
    )
    less = measured(report(0.84, "latency"))["policies"]
    both = {**figures, "policies": {**less, **figures["policies"]}}
    rows = end_to_end({"made": both}, shown, detailed).splitlines()
    assert rows[2].startswith("| `made`, 40/s | `latency` | 84.0 ±1.0 % |")
    assert rows[3].startswith("|  | `slo` | **85.0")
    assert (
        end_to_end({"made": both}, shown, {"made": ("slo",)})
        .splitlines()[2]
        .startswith("| `made`, 40/s | `slo` |")
    )
    alone = measured(report(0.7))
    rows = all_policies({"made": both, "other:full": alone}, {**shown, "other:full": (40,)}).splitlines()
    found = rows[2:4]
    assert found == ["| `latency` | 84.0 / 0.840 | - |", "| `slo` | **85.0** / 0.850 | **70.0** / 0.700 |"]
    assert rows[-1].endswith("at most: 1.0 on `made`, 40/s, 1.0 on `other`, 40/s.")
    priced = end_to_end({"made": measured(report(0.85), PRICED)}, shown, detailed).splitlines()
    assert priced[2].endswith("| 0.850 / 0.850 | 0.850 | 850 | 1.50 |")
    figures = measured(report(0.85), BLOCK)
    assert block(figures).splitlines()[2] == (
        "| 40/s | `slo` | 85.0 ±1.0 % | 0.850 / 0.850 | 0.850 / 0.850 | 850 / 850 | 850,000 | at least 40/s |"
    )
    late = report(0.85)
    late["runs"][0]["ttft_s"]["p99"] = 3.5
    assert measured(late, BLOCK)["policies"]["slo"]["ttft_capacity"] == "between below 40 and at least 40"
    assert replaced("a <!-- x: begin -->old<!-- x: end --> b", "x", "new").split("\n")[2] == "new"
    with pytest.raises(ValueError, match="no marks"):
        replaced("a page", "x", "new")


def test_figures_are_listed_by_their_commits() -> None:
    old, new = ({"policies": {"slo": {"commit": commit}}} for commit in ("abc1234", "def5678"))
    found = provenance({"one": old, "two": new, "three": old}).splitlines()
    assert found == ["- commit `abc1234`: `one`, `three`", "- commit `def5678`: `two`"]


def test_a_draw_that_differs_is_reported() -> None:
    kept, same = measured(report(0.85)), measured(report(0.853))
    assert list(differences(kept, same, 0.005)) == []
    assert list(differences(kept, measured(report(0.8)), 0.005)) == [
        "slo, 40/s, draw 0: 0.8500 is told, 0.8000 measured",
        "slo, 40/s, draw 1: 0.9500 is told, 0.9000 measured",
    ]


EXPERIMENT = {
    "experiment": "heterogeneity",
    "commit": "abc1234def",
    "sections": [
        {
            "tables": [
                {
                    "title": "llama-3.1-8b on one a100-80g",
                    "columns": ["engine", "requests/s", "TTFT p50 (s)", "95 % interval"],
                    "rows": [
                        ["vLLM", 1.0, 0.1234567, "0.1 to 0.2"],
                        ["vLLM", 2.0, 0.2, None],
                        ["Ollama", 2.0, 9.0, "8 to 10"],
                    ],
                },
                {"title": "Not on the page", "columns": [], "rows": []},
            ]
        }
    ],
}


def test_a_page_shows_part_of_an_experiment() -> None:
    kept = experiments.kept(EXPERIMENT)
    ((title, table),) = kept["tables"].items()
    assert table["rows"][0] == ["vLLM", 1.0, 0.12346, "0.1 to 0.2"]
    plain = experiments.Excerpt(title, ("engine", "TTFT p50 (s)"), where={"requests/s": (2.0,)})
    assert plain.text(table).splitlines()[2:] == ["| vLLM | 0.200 |", "| Ollama | 9.00 |"]
    across = experiments.Excerpt(
        title, ("requests/s",), ("engine",), "{:.1f} ({})", ("TTFT p50 (s)", "95 % interval")
    )
    assert across.text(table).splitlines() == [
        *("| requests/s | vLLM | Ollama |", "| --- | --- | --- |"),
        *("| 1.00 | 0.1 (0.1 to 0.2) | - |", "| 2.00 | 0.2 | 9.0 (8 to 10) |"),
    ]
    assert experiments.provenance({"heterogeneity": kept}) == "- `heterogeneity`: commit `abc1234`"


def test_a_figure_of_an_experiment_that_differs_is_reported() -> None:
    old, new = experiments.kept(EXPERIMENT), experiments.kept(EXPERIMENT)
    ((title, table),) = new["tables"].items()
    table["rows"] = [["vLLM", 1.0, 0.125, "0 to 1"], ["vLLM", 2.0, 0.3, None]]
    assert list(experiments.differences(old, new)) == [
        f"{title}, vLLM 2: TTFT p50 (s): 0.2 is told, 0.3 measured"
    ]


def test_an_experiment_is_checked_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads((ROOT / experiments.KEPT).read_text())
    found = {**told["heterogeneity"], "commit": "abc1234"}
    monkeypatch.setattr(experiments, "measured", lambda name: found)
    monkeypatch.setattr(command, "write", lambda root: None)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / experiments.KEPT, tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    assert command.main(["check", "heterogeneity"]) == 0
    assert capsys.readouterr().out == "heterogeneity: as told\n"
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    assert command.main(["measure", "heterogeneity"]) == 2
    assert "set HEADWAY_DATA" in capsys.readouterr().err
    monkeypatch.setenv("HEADWAY_DATA", "/data")
    assert command.main(["measure", "heterogeneity"]) == 0
    assert json.loads((tmp_path / experiments.KEPT).read_text()) == {**told, "heterogeneity": found}


def test_the_latency_model_is_trained_as_the_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = {"name": "TTFT pinball loss", "part": "made", "of": "LSTM", "value": 0.1234567, "rows": 9}
    made = SimpleNamespace(artifact=SimpleNamespace(about={"commit": "abc1234", "metrics": [metric]}))
    trained: list[object] = []
    monkeypatch.setattr(defaults, "data_for", lambda kind, environment: kind.name)
    monkeypatch.setattr(
        train, "train_and_evaluate", lambda kind, data, out, **rest: trained.append((data, rest)) or made
    )
    found = experiments.measured(experiments.LATENCY_MODEL)
    assert trained == [("latency", {"seed": defaults.SEED, "held_out": defaults.HELD_OUT})]
    (table,) = found["tables"].values()
    assert table["rows"] == [["TTFT pinball loss", "made", "LSTM", 0.12346]]


@pytest.mark.parametrize(
    ("do", "data", "also"),
    [
        ("measure", "", set()),
        ("check", "", {"training"}),
        ("measure", "/data", {"training", "latency-model"}),
    ],
)
def test_what_needs_published_sets_is_measured_with_them(
    do: str, data: str, also: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_DATA", data)
    names = command._all(do, None)
    assert {"training", "latency-model"} & set(names) == also
    assert ("overload:full" in names) == bool(data)
    assert set(command._all(do, ("slo",))) <= CLAIMS.keys()


def test_policies_measured_anew_take_their_place_among_the_others() -> None:
    claim = CLAIMS["one-model-unequal-gpus"]
    old, new = measured(report(0.5, "slo")), measured({**report(0.6, "latency"), "oracle": []})
    merged = command._merged(claim, old, new)
    assert list(merged["policies"]) == ["latency", "slo"]
    assert merged["oracle"] == old["oracle"]
    better = {**new, "oracle": {"40": 0.95}}
    assert command._merged(claim, old, better)["oracle"] == {"40": 0.95}
    assert command._merged(claim, better, old)["oracle"] == {"40": 0.95}


def test_arguments_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["check", "nonsense"])
    assert ended.value.code == 2
    assert "unknown: nonsense" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["measure", "one-model-unequal-gpus", "--policies", "eccos_rr"])
    assert "none of these policies: eccos_rr" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["measure", "training", "--policies", "slo"])
    assert "none of these policies: slo" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_tables_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert command.main(["check"]) == 0
