"""`headway train`: an artifact that tells what made it, and one line for what cannot be learned from."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets.splits import split
from benchmarks.training.command import read_and_prepare
from predictors.learned.artifact import load
from predictors.learned.models import KINDS
from predictors.training.dataset import Dataset, write
from router import cli
from tests.commands import Headway
from tests.data_files import put
from tests.records import keep
from tests.unit.benchmarks_datasets.test_records_as_data import record

from .made import answers, log

SMALL = answers(160)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collected")
    write(SMALL, folder)
    return folder


def refused(headway: Headway, kind: str, data: Path, out: Path, *more: str) -> str:
    return headway.refusal("train", kind, "--data", data, "--out", out, *more)


@pytest.fixture(scope="module")
def told(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON report of a small training, made once."""
    out = tmp_path_factory.mktemp("artifacts")
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *words, **_: lines.append(" ".join(map(str, words))))
        assert cli.main(["train", "relevance", "--data", str(collected), "--out", str(out), "--json"]) == 0
    return json.loads(lines[-1])


def test_the_artifact_tells_what_made_it(told: dict[str, Any]) -> None:
    artifact = load(Path(told["path"]), "relevance", KINDS["relevance"].model.features)
    assert artifact.name == told["artifact"]
    about = artifact.about
    (source,) = about["data"]
    (held,) = told["evaluated_on"]
    assert source["name"] == "made"
    assert source["licence"] == "CC0"
    assert source["answers"] + held["answers"] == len(SMALL.answers)
    assert (about["seed"], about["held_out"], about["final"]) == (1, 0.2, False)
    assert about["metrics"]
    assert {each["part"] for each in about["metrics"]} == {"all"}
    assert about["commit"]
    assert {"numpy", "scikit-learn", "torch"} <= about["versions"].keys()
    assert told["figures"]


def test_final_trains_on_everything(collected: Path, tmp_path: Path, headway: Headway) -> None:
    shown = headway.out("train", "relevance", "--data", collected, "--out", tmp_path, "--final")
    assert "then it was trained once more on everything" in shown
    assert str(tmp_path / "relevance.headway.npz") in shown
    about = load(tmp_path / "relevance.headway.npz").about
    assert about["data"][0]["answers"] == len(SMALL.answers)
    assert about["metrics_are_of"] == "the held-out part, before training once more on all"


# --- from a gateway's log -----------------------------------------------------------------------------
@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A request each second for ten minutes, some years ago."""
    path = tmp_path / "gateway.sqlite"
    keep(path, [record(number, float(number)) for number in range(600)])
    return path


def prepared(database: Path, *words: str | Path) -> tuple[Dataset, Dataset]:
    """(what is held out, what would be trained on) of a log."""
    kind = KINDS["latency"]
    given = ["train", "latency", "--from-store", database, "--out", "artifacts", *words]
    args = cli.build_parser("train").parse_args(list(map(str, given)))
    data, prepare = read_and_prepare(args, kind)
    part, held = split(data, args.held_out, args.seed, of_prompts=kind.of_prompts)
    return held, prepare(part)


def test_a_log_is_sampled_and_its_end_held_out(database: Path, tmp_path: Path) -> None:
    write(log(tuple("abcdefghij"), 10, source="base"), tmp_path / "base")
    sample = "--base-share 0.5 --per-stratum 150 --held-out 0.2"
    held, used = prepared(database, "--data", tmp_path / "base", *sample.split())
    last = [each.dispatched_s for each in held.attempts if each.run.startswith("records/")]
    assert len(last) == pytest.approx(120, abs=2)
    of_log = [each.dispatched_s for each in used.attempts if each.run.startswith("records/")]
    assert 100 <= len(of_log) <= 155
    assert max(of_log) < min(last)
    assert 1 <= len({run.level for run in used.runs if run.source == "base"}) < 8
    assert len({run.level for run in held.runs if run.source == "base"}) == 2


def test_a_log_alone_is_enough(database: Path) -> None:
    _, used = prepared(database)
    assert len(used.attempts) == pytest.approx(480, abs=10)


def test_old_rows_are_left_out(database: Path, tmp_path: Path, headway: Headway) -> None:
    told = headway.refusal(
        "train", "memory", "--from-store", database, "--since", "1", "--out", tmp_path / "out"
    )
    assert "nothing in the data" in told or "no " in told


# --- what cannot be learned from ----------------------------------------------------------------------
def damaged(folder: Path, data: Dataset, table: str, line: str) -> Path:
    write(data, folder)
    put(folder / f"{table}.jsonl.gz", line + "\n")
    return folder


def test_what_is_no_data_is_refused(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    out = tmp_path / "out"
    assert "nothing to read" in headway.refusal("train", "relevance", "--out", out)
    assert "no such file or folder" in refused(headway, "relevance", tmp_path / "none", out)
    (tmp_path / "empty").mkdir()
    assert "neither a data set" in refused(headway, "relevance", tmp_path / "empty", out)
    (tmp_path / "note.txt").write_text("no database\n" * 50, encoding="utf-8")
    assert "note.txt" in refused(headway, "latency", tmp_path / "note.txt", out)
    told = refused(headway, "relevance", tmp_path / "empty", out, "--sets", "zeroval")
    assert "no set 'zeroval': there are zeroeval" in told


def test_tables_that_are_wrong_are_refused_with_their_line(headway: Headway, tmp_path: Path) -> None:
    out = tmp_path / "out"
    nan = '{"run": "log-0", "model": "m", "dispatched_s": NaN, "prompt_tokens": 3}'
    folder = damaged(tmp_path / "nan", log(), "attempts", nan)
    told = refused(headway, "latency", folder, out)
    assert "attempts.jsonl.gz, line 1: dispatched_s is not a finite number" in told
    folder = damaged(tmp_path / "missing", log(), "attempts", '{"run": "log-0", "model": "m"}')
    assert "line 1: dispatched_s is missing" in refused(headway, "latency", folder, out)


def test_too_little_is_refused(headway: Headway, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(answers(2), tmp_path / "two")
    write(log(attempts=1), tmp_path / "one")
    for kind, folder in (("length", "two"), ("relevance", "two"), ("latency", "one"), ("memory", "one")):
        assert "too little data" in refused(headway, kind, tmp_path / folder, out)
    assert "nothing in the data that a latency" in refused(headway, "latency", tmp_path / "two", out)


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("relevance", ("--held-out", "0"), "--held-out: must be above 0"),
        ("relevance", ("--held-out", "1.2"), "--held-out: must be below 1"),
        ("relevance", ("--base-share", "-1"), "--base-share: must be at least 0"),
        ("relevance", ("--per-stratum", "0"), "--per-stratum: must be at least 1"),
        ("relevance", ("--since", "-3"), "--since: must be above 0"),
        ("latency", ("--per-stratum", "7"), "--per-stratum: needs --from-store"),
        ("latency", ("--base-share", "0.1"), "--base-share: needs --from-store"),
        ("relevance", ("--per-stratum", "7", "--from-store", "gateway.db"), "--per-stratum: needs"),
        ("relevance", ("--since", "3"), "--since: needs a gateway's database to read"),
        ("relevance", ("--config", "fleet.yaml"), "--config: needs a gateway's database to read"),
        ("relevance", ("--sets", "zeroeval"), "--sets: needs a folder of public sets"),
    ],
)
def test_an_option_out_of_range_or_that_applies_to_nothing_is_refused(
    headway: Headway,
    collected: Path,
    tmp_path: Path,
    kind: str,
    words: tuple[str, ...],
    message: str,
) -> None:
    assert message in refused(headway, kind, collected, tmp_path, *words)


def test_a_base_share_needs_data_to_take_it_from(headway: Headway, tmp_path: Path) -> None:
    words = ("--from-store", "gateway.db", "--base-share", "0.1", "--out", tmp_path)
    assert "--base-share: needs --data" in headway.refusal("train", "latency", *words)
    words = ("--from-store", "gateway.db", "--sets", "zeroeval", "--out", tmp_path)
    assert "--sets: needs a folder of public sets" in headway.refusal("train", "latency", *words)


@pytest.mark.parametrize("kind", ["length", "relevance"])
def test_emulated_data_is_refused_before_it_is_made(headway: Headway, tmp_path: Path, kind: str) -> None:
    told = headway.refusal("train", kind, "--data", "emulated", "--out", tmp_path)
    assert f"--data emulated: has no prompts, from which a {kind} predictor learns" in told


def test_a_place_that_cannot_be_written_is_told_before_training(
    headway: Headway, collected: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("here", encoding="utf-8")
    told = refused(headway, "relevance", collected, tmp_path / "file")
    assert f"headway train: --out {tmp_path / 'file'}: must be a folder" in told


@pytest.mark.parametrize("module", ["torch", "sklearn"])
def test_what_is_not_installed_is_told_with_its_extra(
    headway: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    ours = ("predictors.training", "benchmarks.evaluate.", f"{module}.")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    told = refused(headway, "relevance", tmp_path, tmp_path)
    assert re.fullmatch(
        rf"headway: train needs {module}[\w.]*: make dev, or \S+/bin/pip install -e '\.\[train\]', in Headway's checkout\n",
        told,
    )
