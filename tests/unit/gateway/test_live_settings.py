"""What the scheduler and its policies take from a fleet file, and from artifacts that a reload replaces."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from router import wiring
from router.config import loads
from router.core.interfaces import TextEstimates
from router.core.types import PromptFeatures
from router.gateway.fleet.instances import scheduler_settings, targets_of
from router.wiring import text_estimators

FEATURES = PromptFeatures((1, 2), (), (0,))


@pytest.mark.parametrize(
    ("section", "share", "explore"),
    [
        ("{}", 0.0, 0.01),
        ("{hedge: {max_share: 0.2}}", 0.0, 0.01),
        ("{hedge: {enabled: true}, explore: 0}", 0.03, 0.0),
        ("{hedge: {enabled: true, max_share: 0.2}, explore: 0.5}", 0.2, 0.5),
    ],
)
def test_hedging_and_exploring(section: str, share: float, explore: float) -> None:
    settings = scheduler_settings(loads(f"models: [{{name: m}}]\nscheduling: {section}"))
    assert (settings.hedge_share, settings.explore) == (share, explore)


def test_the_time_limits_of_an_engine_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("backends.create", lambda kind, **fields: given.update(fields))
    file = loads(
        "models: [{name: m}]\nprobes: {timeout_s: 60}\nlimits: {connect_timeout_s: 7, idle_timeout_s: 8}\n"
        "instances: [{name: a, kind: openai, url: 'http://a', serves: {m: m}}]"
    )
    wiring.create_backend(file.instances[0], file, "http://a", {})
    limits = given["control_timeout_s"], given["connect_timeout_s"], given["idle_timeout_s"]
    assert limits == (60, 7, 8)


def test_targets_of_the_file_and_changed_ones() -> None:
    digest = "0" * 64
    file = loads(
        f"models: [{{name: m}}]\nscheduling: {{cost: {{quality: 0.5}}}}\n"
        f"auth: {{keys: [{{name: k, sha256: '{digest}', attainment: 0.8}}]}}"
    )

    def found(
        changes: dict[str | None, dict[str, float | None]],
    ) -> dict[str | None, tuple[float | None, float]]:
        targets = targets_of(file, file.auth.keys, changes)
        return {key: (each.quality, each.attainment) for key, each in targets.items()}

    assert found({}) == {None: (0.5, 0.95), "k": (0.5, 0.8)}
    fleet: dict[str | None, dict[str, float | None]] = {None: {"quality": 0.6, "attainment": 0.9}}
    assert found(fleet) == {None: (0.6, 0.9), "k": (0.6, 0.8)}
    assert found(fleet | {"k": {"quality": None}}) == {None: (0.6, 0.9), "k": (None, 0.8)}
    # Another replica has made `later`, and this one has not read it yet.
    assert found({"later": {"attainment": 0.6}}) == found({})


def test_text_estimators_follow_the_artifact_in_use() -> None:
    def says(value: float) -> Any:
        def estimate(features: PromptFeatures, models: Sequence[str]) -> TextEstimates:
            return TextEstimates([value] * len(models), [None] * len(models))

        return SimpleNamespace(estimators={"knn": estimate})

    predictor: Any = SimpleNamespace(models=SimpleNamespace(text=None))
    assert text_estimators(predictor) == {}
    predictor.models = SimpleNamespace(text=says(0.25))
    found = text_estimators(predictor)
    assert list(found) == ["knn"]
    assert found["knn"](FEATURES, ["a", "b"]).quality == [0.25, 0.25]
    predictor.models = SimpleNamespace(text=says(0.75))
    assert found["knn"](FEATURES, ["a"]).quality == [0.75]
    predictor.models = SimpleNamespace(text=None)
    assert found["knn"](FEATURES, ["a"]) == ([None], [None])
