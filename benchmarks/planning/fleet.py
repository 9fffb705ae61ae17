"""A placement as a fleet file: one instance for each replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from benchmarks.planning.problem import PlanningProblem, is_gguf
from policies.placement.types import Group, Placement
from router.config import FleetConfig
from router.config.load import check

#: Engines give KV memory away in blocks of so many tokens.
_BLOCK_TOKENS = 16
_HEADING = """# Made by `headway plan`. Instances are emulated, so that `headway serve`, `check` and `compare` take the file as it is.
# For real engines write `kind: vllm` (Ollama: `kind: ollama`), `url` and `hardware` instead of `profile`.
"""


def fleet_data(problem: PlanningProblem, placement: Placement, base: Mapping[str, Any]) -> dict[str, Any]:
    """The file's data. `base` has the sections beside models and instances."""
    counts: Counter[str] = Counter()
    instances = []
    for group in placement:
        for model in group.models:
            instance = _instance(problem, group, model)
            place = counts[instance["name"]]
            counts[instance["name"]] += 1
            instances.append({**instance, "name": f"{instance['name']}-{place}"})
    models = [
        each.fleet_entry().model_dump(mode="json", exclude_defaults=True) for each in problem.model_configs
    ]
    return {**base, "models": models, "instances": instances}


def _instance(problem: PlanningProblem, group: Group, model: int) -> dict[str, Any]:
    config, shape = problem.model_configs[model], group.shape
    profile = problem.profile_name(model, shape)
    found: dict[str, Any] = {"name": f"{config.name}-{_plain(profile.partition('@')[2])}", "kind": "emulated"}
    if is_gguf(config):
        found["emulates"] = "ollama"
    found["profile"] = profile
    if shape.kind.usd_per_hour is not None:
        found["usd_per_hour"] = shape.usd_per_hour
    served: dict[str, Any] = {"name": config.name, "quantization": config.weights}
    engine = problem.profile(model, shape)
    if engine is not None and (config.context_tokens or 0) > engine.kv_capacity_tokens:
        served["context_tokens"] = engine.kv_capacity_tokens - engine.kv_capacity_tokens % _BLOCK_TOKENS
    return found | {"serves": {config.name: served}}


def _plain(hardware: str) -> str:
    """As part of an instance's name: unlike stages are joined by `-`."""
    return hardware.translate(str.maketrans("+:", "--"))


def fleet_config(data: Mapping[str, Any], source: str = "the fleet file of a plan") -> FleetConfig:
    """The data as the gateway reads it. Raises ConfigError; `source` says in it where the data is from."""
    return check(dict(data), source, lambda path: None)


def fleet_yaml(data: Mapping[str, Any]) -> str:
    return _HEADING + yaml.safe_dump(dict(data), sort_keys=False, width=110, default_flow_style=None)
