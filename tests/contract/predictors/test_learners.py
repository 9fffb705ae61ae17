"""What holds for every learner and every kind of artifact in the registries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from predictors.learned.artifact import Artifact, ArtifactError, save
from predictors.learned.models import KINDS, UNTRAINED, ArtifactKind, Models, load_models
from predictors.online.learner import Learner
from predictors.online.learners import LEARNERS
from predictors.online.predictor import OnlinePredictor
from router.core.types import Slo
from tests.unit.predictors_online.virtual_engine import TRUTH, Run


def test_every_kind_of_observation_has_one_learner_and_one_name() -> None:
    kinds = [kind for learner in LEARNERS for kind in learner.observations]
    assert set(Counter(kind.__name__ for kind in kinds).values()) == {1}


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda each: each.__name__)
def test_an_observation_names_what_it_is_about(learner: type[Learner[Any]]) -> None:
    assert learner.observations
    for kind in learner.observations:
        assert {"candidate", "model"} & {field.name for field in fields(kind)}
        assert kind.__slots__


def observed_twice(observe: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def twice(event: Any) -> Any:
        first, second = observe(event), observe(event)
        assert type(first) is type(second)
        return second

    return twice


def predictions(predictor: OnlinePredictor) -> list[tuple[float | None, ...]]:
    seen = Run(predictor, TRUTH).arrive(4.0, 60, Slo(0.5, 0.03, 6.0))
    of = [each.prediction for each in seen]
    return [(each.ttft_s_p95, each.tpot_s, each.output_tokens_mean, each.p_miss) for each in of]


@pytest.mark.parametrize("models", [UNTRAINED, load_models()], ids=["untrained", "trained"])
def test_observing_changes_nothing(models: Models) -> None:
    plain, doubled = OnlinePredictor(models), OnlinePredictor(models)
    learning: Any = doubled.observe_end.__self__  # type: ignore[attr-defined]
    for steps in (learning._on_dispatch, learning._on_first_token, learning._on_end, learning._on_loss):
        steps[:] = [(observed_twice(observe), apply) for observe, apply in steps]
    assert predictions(doubled) == predictions(plain)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_refuses_other_features(kind: ArtifactKind, tmp_path: Any) -> None:
    assert kind.model.features
    path = save(Artifact(kind.name, (*kind.model.features, "another"), {}), tmp_path)
    with pytest.raises(ArtifactError, match="another"):
        kind.load(path)
