"""`headway reproduce wlb`: on made rows, and on the published ones where HEADWAY_DATA has them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reproduce.wlb import UNREACHABLE, rows_of
from tests.commands import Headway

ATTENTION = "tp,cp,tokens,attn_fwd_ms\n1,1,1024,1.0\n1,1,2048,3.0\n2,1,1024,0.8\n2,1,2048,1.5\n"


def write(folder: Path, *cases: dict[str, Any]) -> None:
    (folder / "wlb_attention_profile_a100_80gb.csv").write_text(ATTENTION)
    published = {"mlp_ms_derived": {"1024tok_tp2_cp1": 0.25}, "cases": cases}
    (folder / "wlb_cases.json").write_text(json.dumps(published))


def unlike(reported_ms: float) -> dict[str, Any]:
    groups = [{"docs_K": [2], "tp": 2, "cp": 1}, {"docs_K": [1], "tp": 1, "cp": 1}]
    return {
        "id": "ours",
        "system": "ours",
        "gpus": None,
        "batch_K": {"2": 1, "1": 1},
        "groups": groups,
        "reported_ms": reported_ms,
    }


EQUAL = {
    "id": "equal",
    "system": "wlb",
    "tp": 2,
    "cp": 1,
    "dp": 2,
    "groups": [{"docs_K": [2]}, {"docs_K": [1, 1]}],
    "reported_ms": 2.1,  # 2 x (0.8 + 0.25); 1.5 + 0.5 for the long one
}


def test_rows_are_reproduced_and_planned(tmp_path: Path, headway: Headway) -> None:
    write(tmp_path, unlike(1.5), EQUAL)
    rows = headway.json("reproduce", "wlb", "--data", tmp_path)
    assert [(row["case"], row["same_groups_ms"], row["planned_ms"], row["reproduced"]) for row in rows] == [
        ("ours", pytest.approx(1.5), pytest.approx(1.5), True),
        ("equal", pytest.approx(2.1), pytest.approx(2.1), True),
    ]
    assert rows[0]["planned_groups"] == "2x1:1 1x1:1"


def test_a_row_that_comes_out_otherwise_is_an_error(tmp_path: Path, headway: Headway) -> None:
    write(tmp_path, unlike(1.4))
    assert "other" in headway.out("reproduce", "wlb", "--data", tmp_path, code=1)


def test_without_its_files_it_says_what_is_missing(tmp_path: Path, headway: Headway) -> None:
    told = headway.refusal("reproduce", "wlb", "--data", tmp_path)
    assert f"cannot read {tmp_path}/wlb_attention_profile_a100_80gb.csv: No such file" in told


@pytest.mark.skipif(not os.environ.get("HEADWAY_DATA"), reason="needs the published cases")
def test_the_published_rows() -> None:
    rows = list(rows_of(Path(os.environ["HEADWAY_DATA"])))
    assert len(rows) == 12
    assert {row.case for row in rows if not row.reproduced} == set(UNREACHABLE)
