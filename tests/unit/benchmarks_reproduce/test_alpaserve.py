"""`headway reproduce alpaserve`: on a made case, and on the published ones where HEADWAY_DATA has them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Headway

LARGE = [
    {"name": "llama-2-70b", "weights_gb_fp16": 137.95},
    {"name": "falcon-40b", "weights_gb_fp16": 83.68},
    {"name": "llama-2-7b", "weights_gb_fp16": 13.48},
    {"name": "falcon-40b", "weights_gb_fp16": 83.68},
]
ALL_IN_ONE = [{"op": 4, "pp": 2, "models": [0, 1, 2, 3]}]
COMMAND = ["reproduce", "alpaserve"]
QUICK = ["--seeds", "3", "--requests", "300", "--draws", "1", "--planning-requests", "300"]


def case(groups: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    return {
        "algorithm": "AlpaServe",
        "model_set": "large",
        "rate": 0.4,
        "trace": "code",
        "slo_scale": 5.0,
        "feasible": bool(groups),
        "groups": groups,
        "devices": 8,
        **changed,
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    big = [{"name": "llama-2-70b", "weights_gb_fp16": 137.95}] * 3
    cases = [
        case(ALL_IN_ONE),
        case(ALL_IN_ONE, algorithm="AlpaServe*"),
        case([], algorithm="AlpaServe*", model_set="twentyone"),
    ]
    sets = {"large": LARGE, "twentyone": big}
    content = {"output_length": 20, "model_sets": sets, "cases": cases}
    (tmp_path / "alpaserve_cases.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def test_rows(data: Path, headway: Headway) -> None:
    greedy, star, infeasible = headway.json(*COMMAND, "--data", data, *QUICK)
    assert greedy["reproduced"]
    assert star["reproduction"]["seeds"] == [0, 1, 2]
    assert greedy["against"]["gap"] >= 0
    assert greedy["against"]["attained"]["headway"] == greedy["against"]["attained"]["exhaustive"]
    (reason,) = infeasible["reproduction"]["reasons"]
    assert reason.startswith(
        "llama-2-70b, llama-2-70b, llama-2-70b: need 51.8 GB of each of 8 GPUs, which have 49.1"
    )
    assert infeasible["against"] is None


def test_a_terminal_shows_how_many_cases_are_done(
    data: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "1/1" in headway.err(*COMMAND, "--data", data, "--json", *QUICK, "--cases", "2", code=0)


def test_the_table(data: Path, headway: Headway) -> None:
    out = headway.out(*COMMAND, "--data", data, *QUICK)
    assert "3 of 3 reproduced." in out
    assert "NOT FEASIBLE" in out
    assert out.endswith("Every row is within its bound.\n")


def test_a_placement_that_the_method_does_not_give_is_out_of_bound(data: Path, headway: Headway) -> None:
    path = data / "alpaserve_cases.json"
    content = json.loads(path.read_text())
    content["cases"] = [case([{"op": 4, "pp": 1, "models": [2]}, {"op": 4, "pp": 1, "models": [1]}])]
    path.write_text(json.dumps(content))
    (row,) = headway.json(*COMMAND, "--data", data, *QUICK, code=1)
    assert not row["reproduced"]
    assert row["reproduction"]["reasons"] == ["3 x 1 x (4,2) scores higher"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda path: path.unlink(), "alpaserve_cases.json: No such file"),
        (lambda path: path.write_text("{"), "not valid JSON"),
        (lambda path: path.write_text('{"output_length": 20, "cases": []}'), "model_sets"),
    ],
)
def test_data_that_cannot_be_used(data: Path, change: Any, problem: str, headway: Headway) -> None:
    change(data / "alpaserve_cases.json")
    assert problem in headway.refusal(*COMMAND, "--data", data)


def test_what_is_missing_is_said(data: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    assert "set HEADWAY_DATA" in headway.refusal(*COMMAND)
    assert "--cases: no case 9" in headway.refusal(*COMMAND, "--data", data, "--cases", "9")


needs_data = pytest.mark.skipif(not os.environ.get("HEADWAY_DATA"), reason="needs the published cases")


def published(headway: Headway, *cases: int) -> dict[int, dict[str, Any]]:
    place = Path(os.environ["HEADWAY_DATA"])
    more = ("--cases", *cases, "--seeds", 6, "--requests", 1000)
    found = headway.json(*COMMAND, "--data", place, *QUICK, *more)
    return {row["case"]: row for row in found}


@needs_data
def test_published_cases(headway: Headway) -> None:
    """Both placements of `large` at the seed that gives all 44, `regular` of AlpaServe*, and the infeasible one.
    `headway reproduce alpaserve` runs all 49."""
    found = published(headway, 10, 11, 33, 39, 48)
    assert all(row["reproduced"] for row in found.values())
    assert all(5 in found[number]["reproduction"]["seeds"] for number in (10, 11, 39))
    assert found[33]["reproduction"]["assumptions"] == "the trace's own arrivals, layer times"
    assert "151.3 GB" in found[48]["reproduction"]["reasons"][0]


@needs_data
@pytest.mark.nightly
def test_published_placements_that_the_method_would_not_end_at(headway: Headway) -> None:
    found = published(headway, 23, 24)
    assert not any(row["reproduced"] for row in found.values())
    assert all("has room for llama-2-7b" in row["reproduction"]["reasons"][0] for row in found.values())
