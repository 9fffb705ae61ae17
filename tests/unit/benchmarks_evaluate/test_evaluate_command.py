"""`headway evaluate`: the figures of an artifact on data, and one line for what is neither."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets.splits import digest, split
from benchmarks.training.train import train_and_evaluate
from predictors.learned.artifact import SHIPPED, Artifact, load, save
from predictors.learned.models import KINDS
from predictors.training.dataset import Dataset, joined, write
from tests.commands import Headway
from tests.unit.benchmarks_training.made import answers, log

KIND = KINDS["relevance"]
MADE = answers(160)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    train_and_evaluate(KIND, MADE, folder)
    return folder


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collected")
    write(MADE, folder)
    return folder


def evaluate(artifact: Path, data: Path) -> list[str]:
    return ["evaluate", "--artifact", str(artifact), "--data", str(data)]


def refused(headway: Headway, artifact: Path, data: Path, *more: str | Path) -> str:
    return headway.refusal(*evaluate(artifact, data), *more)


def test_held_out_is_what_training_held_out(artifacts: Path, collected: Path, headway: Headway) -> None:
    """The figures are those that `headway train` told, baselines included."""
    (told,) = headway.json(*evaluate(artifacts / "relevance.headway.npz", collected), "--held-out")["results"]
    metrics = {
        (each["name"], each["of"]): each
        for each in load(artifacts / "relevance.headway.npz").about["metrics"]
    }
    found = {(each["name"], each["of"]): each for each in told["figures"] if each["part"] == "all"}
    assert found.keys() == metrics.keys()
    for key, figure in found.items():
        assert figure["value"] == pytest.approx(metrics[key]["value"], rel=1e-4)


def test_a_folder_is_evaluated_by_what_the_data_tell(
    artifacts: Path, tmp_path: Path, headway: Headway
) -> None:
    """Other prompts of the same kinds; a latency artifact beside it has no data to be asked about."""
    shutil.copytree(artifacts, tmp_path / "both")
    save(Artifact("latency", KINDS["latency"].model.features, {"a": np.ones(1)}), tmp_path / "both")
    write(answers(60, seed=2, source="later"), tmp_path / "later")
    shown = headway.out(*evaluate(tmp_path / "both", tmp_path / "later"), "--out", tmp_path / "report")
    assert "relevance predictor" in shown
    assert "later (120 answers)" in shown
    assert "latency predictor" not in shown
    told = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    (result,) = told["results"]
    assert result["evaluated_on"][0]["name"] == "later"
    assert "<svg" in (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def test_an_artifact_that_the_data_do_not_suit_is_left_out(
    artifacts: Path, tmp_path: Path, headway: Headway
) -> None:
    """Answers of other models than the relevance artifact knows; the length artifact knows a prior for any model."""
    shutil.copytree(artifacts, tmp_path / "both")
    shutil.copy(SHIPPED / "length.headway.npz", tmp_path / "both")
    data = answers(60, seed=2, source="later")
    others = tuple(
        replace(each, model=f"unknown-{each.model}", output_tokens=20 + at)
        for at, each in enumerate(data.answers)
    )
    write(replace(data, answers=others), tmp_path / "later")
    shown = headway(*evaluate(tmp_path / "both", tmp_path / "later"))
    assert shown.code == 0
    assert "length predictor" in shown.out
    assert shown.err == (
        "headway evaluate: left out: relevance.headway.npz: the artifact knows none of the models in the test data\n"
    )


def test_data_that_it_was_trained_on_are_told(artifacts: Path, collected: Path, headway: Headway) -> None:
    assert "some of these may be among them (--held-out leaves them out)." in headway.out(
        *evaluate(artifacts, collected)
    )


def test_a_final_artifact_has_no_held_out_part_to_point_to(
    artifacts: Path, collected: Path, tmp_path: Path, headway: Headway
) -> None:
    artifact = load(artifacts / "relevance.headway.npz")
    path = save(replace(artifact, about={**artifact.about, "final": True}), tmp_path)
    told = headway.out(*evaluate(path, collected))
    assert "it was trained on everything" in told
    assert "--held-out" not in told


def test_near_copies_of_training_prompts_are_left_out_of_a_separate_test_set(
    artifacts: Path, collected: Path, tmp_path: Path, headway: Headway
) -> None:
    """They were read apart, so their groups have other names."""
    later, copied = answers(60, seed=2, source="later"), MADE.prompts[0]
    copy = replace(copied, id="copy", group="copy", source="later", text=f"{copied.text} Thanks.")
    given = (*later.answers, *(replace(each, prompt="copy") for each in MADE.answers[:2]))
    write(replace(later, prompts=(*later.prompts, copy), answers=given), tmp_path / "later")
    (result,) = headway.json(*evaluate(artifacts, tmp_path / "later"), "--train-data", collected)["results"]
    assert "Prompts left out, because --train-data has near copies of them: 1." in result["notes"]
    assert result["evaluated_on"][0]["prompts"] == 60


def test_baselines_must_not_have_seen_the_data(artifacts: Path, collected: Path, headway: Headway) -> None:
    told = refused(headway, artifacts, collected, "--train-data", collected)
    assert "--train-data has near copies of them: 160." in told
    assert "nothing in the data" in told
    told = refused(headway, artifacts, collected, "--train-data", collected, "--held-out")
    assert "leave out --train-data" in told


def test_an_option_that_applies_to_nothing_is_refused(
    artifacts: Path, collected: Path, headway: Headway
) -> None:
    told = refused(headway, artifacts, collected, "--since", "3")
    assert "--since: needs a gateway's database to read" in told
    told = refused(headway, artifacts, collected, "--out", __file__)
    assert f"--out {__file__}: must be a folder" in told


def test_an_artifact_that_is_none_is_refused(
    artifacts: Path, collected: Path, tmp_path: Path, headway: Headway
) -> None:
    assert "No such file" in refused(headway, tmp_path / "none.headway.npz", collected)
    assert "no artifact in this folder" in refused(headway, tmp_path, collected)
    (tmp_path / "cut").mkdir()
    whole = (artifacts / "relevance.headway.npz").read_bytes()
    (tmp_path / "cut" / "relevance.headway.npz").write_bytes(whole[: len(whole) // 2])
    told = refused(headway, tmp_path / "cut", collected)
    assert "relevance.headway.npz: not an artifact of Headway, or damaged" in told


def test_an_artifact_of_other_features_is_refused_by_name(
    artifacts: Path, collected: Path, tmp_path: Path, headway: Headway
) -> None:
    artifact = load(artifacts / "relevance.headway.npz")
    path = save(replace(artifact, features=(*artifact.features, "colour")), tmp_path)
    assert "(colour): train it anew" in refused(headway, path, collected)
    path = save(replace(artifact, kind="weather"), tmp_path)
    assert "a weather artifact, which this version does not know" in refused(headway, path, collected)
    path = save(replace(artifact, arrays={}), tmp_path)
    refused(headway, path, collected)


def test_an_artifact_with_impossible_values_is_refused(
    collected: Path, tmp_path: Path, headway: Headway
) -> None:
    artifact = load(SHIPPED / "length.headway.npz")
    words = artifact.arrays["words"] + 10**9
    path = save(replace(artifact, arrays={**artifact.arrays, "words": words}), tmp_path)
    assert f"{path}: its arrays do not fit (IndexError)" in refused(headway, path, collected)


def test_data_that_tell_nothing_are_refused(artifacts: Path, tmp_path: Path, headway: Headway) -> None:
    path = artifacts / "relevance.headway.npz"
    assert "no such file or folder" in refused(headway, path, tmp_path / "none")
    write(log(), tmp_path / "log")
    assert "nothing in the data that a relevance" in refused(headway, path, tmp_path / "log")
    write(Dataset(prompts=(MADE.prompts[0],)), tmp_path / "prompt")
    assert "nothing in the data" in refused(headway, path, tmp_path / "prompt")


@pytest.mark.parametrize(
    ("kind", "more"), [("relevance", answers(20, seed=3, source="more")), ("memory", log(("9",)))]
)
def test_what_was_held_out_is_not_known_once_the_data_have_grown(
    kind: str,
    more: Dataset,
    artifacts: Path,
    collected: Path,
    tmp_path: Path,
    headway: Headway,
) -> None:
    """One more group or level moves what is held out."""
    before = joined([MADE, log(tuple("12345678"), source="levels")])
    train, _ = split(before, 0.2, 1, of_prompts=KINDS[kind].of_prompts)
    about = {
        **load(artifacts / "relevance.headway.npz").about,
        "training_part": digest(train, of_prompts=KINDS[kind].of_prompts),
    }
    path = save(Artifact(kind, KINDS[kind].model.features, {"a": np.ones(1)}, about), tmp_path)
    grown = joined([before, replace(more, runs=tuple(replace(run, source="levels") for run in more.runs))])
    write(grown, tmp_path / "grown")
    told = refused(headway, path, tmp_path / "grown", "--held-out")
    assert f"the {kind} artifact was trained on other data" in told


def test_what_does_not_say_what_was_held_out(
    artifacts: Path, collected: Path, tmp_path: Path, headway: Headway
) -> None:
    artifact = load(artifacts / "relevance.headway.npz")
    path = save(replace(artifact, about={}), tmp_path)
    assert "does not say what was held out" in refused(headway, path, collected, "--held-out")
    path = save(replace(artifact, about={**artifact.about, "final": True}), tmp_path)
    assert "was trained on everything" in refused(headway, path, collected, "--held-out")
