"""The reference scenarios: all there, sound, and their small forms buildable from nothing."""

from __future__ import annotations

import pytest

import policies
from benchmarks.scenarios import Scenario, load_scenario, names
from benchmarks.simulator import check, open_fleet
from benchmarks.workloads.format import WorkloadError

ALL = (
    *("bursty-code", "day-cycle", "equal-gpus", "instance-loss", "long-context", "mixed-fleet"),
    *("one-model-unequal-gpus", "overload", "split-prices", "unlike-widths"),
)


def test_the_scenarios_are_those() -> None:
    assert tuple(names()) == ALL


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("small", [False, True])
def test_every_scenario_loads(name: str, small: bool) -> None:
    scenario = load_scenario(name, small=small)
    assert scenario.name == name
    assert scenario.form.about.endswith(".")
    assert scenario.form.rates == tuple(sorted(scenario.form.rates))
    assert set(scenario.form.policies) <= set(policies.POLICIES)
    assert open_fleet(scenario.fleet).time_factor == 1.0
    assert bool(scenario.form.losses) == (name == "instance-loss")


@pytest.mark.parametrize("name", ALL)
def test_a_small_form_needs_no_data(name: str) -> None:
    scenario = load_scenario(name, small=True)
    header, requests = scenario.requests(1, {})
    assert len(requests) == header.requests
    assert check(requests, open_fleet(scenario.fleet)) == len(requests)
    assert "files" not in header.details
    assert any(each.routing for each in requests)


def test_seeds_give_other_requests_and_the_same_seed_the_same() -> None:
    scenario = load_scenario("split-prices", small=True)
    assert scenario.requests(1, {})[1] == scenario.requests(1, {})[1]
    assert scenario.requests(1, {})[1] != scenario.requests(2, {})[1]


def test_answers_tell_length_and_quality_of_every_model() -> None:
    scenario: Scenario = load_scenario("mixed-fleet", small=True)
    header, requests = scenario.requests(0, {})
    models = {model.name for model in scenario.fleet.models}
    assert set(header.details["answers"]) == models
    for request in requests:
        assert isinstance(request.output_tokens, dict)
        assert set(request.output_tokens) == set(request.quality or {}) == models


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(WorkloadError, match=r"unknown scenario 'mixed' \(known: bursty-code, .*mixed-fleet"):
        load_scenario("mixed")
