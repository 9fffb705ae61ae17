"""CONTRIBUTING's example of a new predictor, carried out: its code blocks are what is run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.training.train import train_and_evaluate
from predictors.learned import models
from predictors.learned.artifact import ArtifactError, load, save
from predictors.learned.models import ArtifactKind, load_models
from predictors.online import learning
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt
from router.core.types import PromptFeatures
from tests.unit.docs.pages import Block, blocks

LEARNER, LEARNER_TEST, MODEL, TRAINING, ROW = [
    block for block in blocks("py") if block.page.name == "CONTRIBUTING.md"
]


def module(name: str, block: Block, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The members of the block as a module of this name."""
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(block.text, str(block), "exec"), made.__dict__)  # noqa: S102 (our own page)
    return made.__dict__


def test_a_learner_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = module("predictors.online.loss_rates", LEARNER, monkeypatch)["LossRates"]
    monkeypatch.setattr(learning, "LEARNERS", [*learning.LEARNERS, learner])
    tests = module("test_loss_rates", LEARNER_TEST, monkeypatch)
    tests["test_losses_are_learned_here_and_by_other_replicas"]()


def test_a_kind_of_artifact_is_two_files_and_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module("predictors.learned.capped", MODEL, monkeypatch)
    module("predictors.training.capped", TRAINING, monkeypatch)
    kind = eval(ROW.text, {"ArtifactKind": ArtifactKind})  # noqa: S307 (our own page)
    monkeypatch.setitem(models.KINDS, kind.name, kind)
    none = PromptFeatures((), (), ())
    prompts = tuple(Prompt(str(number), str(number), "made", none) for number in range(40))
    answers = tuple(
        Answer(each.id, "Model-7B", None, 10, capped=at % 4 == 0) for at, each in enumerate(prompts)
    )
    made = train_and_evaluate(kind, Dataset(prompts, answers), tmp_path, final=True)
    assert made.found.figures == ()
    found = load_models(tmp_path)
    assert found.capped.share("org/model-7b") == 0.25  # type: ignore[attr-defined]
    assert found.capped.share("another") is None  # type: ignore[attr-defined]
    assert found.about["capped"]["artifact"] in found.name
    with pytest.raises(DatasetError):
        train_and_evaluate(kind, Dataset(prompts, ()), tmp_path)
    artifact = load(made.path)
    save(type(artifact)("capped", ("other",), artifact.arrays), tmp_path)
    with pytest.raises(ArtifactError, match="other features"):
        load_models(tmp_path)
