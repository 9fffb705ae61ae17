"""A scenario file that is wrong is told in one line that names the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.scenarios import Loss, load_scenario
from benchmarks.workloads.format import WorkloadError
from router.config import ConfigError

FLEET = """
models: [{name: llama-3.1-8b, context_tokens: 8192, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 1}}]
instances:
  - {name: a, kind: emulated, profile: llama-3.1-8b@a30, serves: {llama-3.1-8b: llama-3.1-8b}}
  - {name: b, kind: emulated, profile: llama-3.1-8b@l4, serves: {llama-3.1-8b: llama-3.1-8b}}
"""
SOUND: Mapping[str, Any] = {
    "about": "Two\n machines.",
    "fleet": "two.fleet.yaml",
    "workload": "poisson --limit 20",
    "rates": [1, 2.5],
    "seeds": 4,
    "losses": [{"instance": "a", "at": 0.2, "lasts": 0.1}],
    "small": {"workload": "poisson --limit 5", "seeds": 2},
}


def written(folder: Path, **changes: Any) -> str:
    """The path of a sound scenario file with `changes`; a change to None leaves the key out."""
    (folder / "two.fleet.yaml").write_text(FLEET)
    data = {key: value for key, value in {**SOUND, **changes}.items() if value is not None}
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path))
    assert (scenario.name, scenario.form.about, scenario.form.seeds) == ("two", "Two machines.", 4)
    assert scenario.form.rates == (1.0, 2.5)
    assert scenario.form.losses == (Loss("a", 0.2, 0.1),)
    assert len(scenario.requests(0, {})[1]) == 20


def test_the_small_form_changes_what_it_names(tmp_path: Path) -> None:
    scenario = load_scenario(written(tmp_path), small=True)
    assert scenario.form.seeds == 2
    assert scenario.form.rates == (1.0, 2.5)
    assert len(scenario.requests(0, {})[1]) == 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rate": [1]}, "7: rate: unknown key (did you mean 'rates'?)"),
        ({"rates": None}, "rates: is missing"),
        ({"fleet": None}, "fleet: is missing"),
        ({"fleet": "gone.yaml"}, "fleet gone.yaml: cannot be read"),
        ({"fleet": 3}, "2: fleet: must be text (given: 3)"),
        ({"about": 3}, "about: must be text"),
        ({"rates": [0]}, "8: rates[0]: must be above 0 (given: 0)"),
        ({"rates": [1, 1.0]}, "rates: must be different"),
        ({"rates": 3}, "rates: must be a list"),
        ({"rates": [True]}, "rates[0]: must be a number (given: true)"),
        ({"seeds": 0}, "10: seeds: must be at least 1 (given: 0)"),
        ({"seeds": 1.5}, "seeds: must be a whole number"),
        ({"policies": ["slo", "nope"]}, "policies[1]: unknown policy; known: random"),
        ({"policies": ["slo", "slo"]}, "policies: must be different"),
        ({"policies": [["slo"]]}, "policies[0]: must be text"),
        ({"workload": "nowhere --limit 3 --typo"}, "14: workload: unrecognized arguments: --typo"),
        ({"workload": "poisson --limit x"}, "invalid int value: 'x'"),
        ({"workload": "poisson 'open"}, "No closing quotation"),
        ({"workload": "poisson --seed 9"}, "--seed: the scenario's seeds are used"),
        ({"workload": "poisson --slo ttft=3"}, "unknown target 'ttft'"),
        ({"losses": [{"instance": "z", "at": 0.1, "lasts": 0.1}]}, "has no instance 'z'"),
        ({"losses": [{"instance": ["a"], "at": 0.1, "lasts": 0.1}]}, "instance: must be text"),
        ({"losses": [{"instance": "a", "at": 1.5, "lasts": 0.1}]}, "losses[0].at: must be at most 1"),
        ({"losses": [{"instance": "a", "at": 0.5, "lasts": 1.1}]}, "lasts: must be at most 1"),
        ({"losses": [{"instance": "a", "at": -0.5, "lasts": 0.1}]}, "at: must be at least 0"),
        ({"losses": [{"instance": "a", "at": 0.5, "lasts": 0}]}, "lasts: must be above 0"),
        ({"losses": [{"instance": "a", "at": 0.5}]}, "losses[0].lasts: is missing"),
        ({"losses": [{"instance": "a", "at": 0.5, "lasts": 0.1, "for": 1}]}, "losses[0].for: unknown key"),
        ({"losses": [{"instance": "a", "at": 0.5, "lasts": 0.1}] * 2}, "a is lost again before it is back"),
        ({"losses": {"instance": "a"}}, "losses: must be a list"),
        ({"answers": {"llama-3.1-8b": {"length": 1, "quality": 1}}}, "quality: must be below 1"),
        ({"answers": {"llama-3.1-8b": {"length": 1, "quality": 0}}}, "quality: must be above 0"),
        ({"answers": {"llama-3.1-8b": {"length": 0, "quality": 0.5}}}, "length: must be above 0"),
        ({"answers": {"llama-3.1-8b": {"quality": 0.5}}}, "answers.llama-3.1-8b.length: is missing"),
        ({"answers": {"nope": {"length": 1, "quality": 0.5}}}, "answers.nope: the fleet has no such model"),
        ({"answers": [1]}, "answers: must be a mapping"),
        ({"small": [1]}, "small: must be a mapping"),
        ({"small": {"fleet": "x"}}, "12: small.fleet: must be 'workload', 'answers'"),
        ({"small": {"rates": []}}, "12: small.rates: must have at least 1 item"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WorkloadError) as told:
        load_scenario(written(tmp_path, **changes))
    assert str(told.value).startswith("two.yaml:")
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("content", [b"about: [", b"- 1", b"\xff\xfe\xfa", b""])
def test_what_is_no_mapping_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "two.yaml").write_bytes(content)
    with pytest.raises(WorkloadError, match=r"^two\.yaml:(1:)? [^\n]*$"):
        load_scenario(str(tmp_path / "two.yaml"))


def test_a_missing_file_and_a_missing_form_are_told(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"gone\.yaml: cannot be read"):
        load_scenario(str(tmp_path / "gone.yaml"))
    with pytest.raises(WorkloadError, match=r"two\.yaml:1: has no small form"):
        load_scenario(written(tmp_path, small=None), small=True)


def test_a_wrong_fleet_file_is_told_as_such(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "two.fleet.yaml").write_text(FLEET.replace("context_tokens", "context"))
    with pytest.raises(ConfigError, match=r"two\.fleet\.yaml"):
        load_scenario(path)
