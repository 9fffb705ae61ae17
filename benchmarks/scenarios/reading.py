"""Scenario files. One has the keys

about: one sentence
fleet: FILE.fleet.yaml                  # beside the scenario
workload: SOURCE --options ...          # as `headway workload build` takes them
answers: {MODEL: {length: 1, quality: 0.5}}               # made-up ones; left out: the source's own
policies: [a, b]                        # left out: USUAL_POLICIES
rates: [1, 2, 4]                        # requests/s
seeds: 10
losses: [{instance: a100-0, at: 0.4, lasts: 0.2}]         # shares of the workload's span; left out: none
small: {workload: ..., answers: ..., rates: ..., seeds: ..., losses: ...}    # what differs in the small form

All of a file is checked when it is read, in both forms.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NoReturn

import yaml

import policies
from benchmarks.scenarios.answers import Answers
from benchmarks.scenarios.scenario import Loss, Scenario
from benchmarks.workloads import arguments
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.options import BuildOptions
from router.config import FleetConfig, loads
from router.core.quoting import quoted

_NEEDED = ("about", "fleet", "workload", "rates", "seeds")
_KEYS = (*_NEEDED, "answers", "policies", "losses", "small")
_SMALL_KEYS = ("workload", "answers", "rates", "seeds", "losses")


#: What a simulation compares unless told: each objective and the usual baselines, not every rule of a paper.
USUAL_POLICIES = (
    *("random", "round_robin", "least_load", "power_of_two", "lmetric"),
    *("price", "latency", "slo", "relevance", "cost"),
)


def names() -> list[str]:
    """The reference scenarios."""
    files = (entry.name for entry in _folder().iterdir())
    return sorted(
        name.removesuffix(".yaml")
        for name in files
        if name.endswith(".yaml") and not name.endswith(".fleet.yaml")
    )


def load_scenario(name: str, *, small: bool = False) -> Scenario:
    """A reference scenario by its name, or any by the path of its file (`.yaml`). Raises WorkloadError for an
    unknown one and for a wrong file, ConfigError for a wrong fleet file."""
    if name.endswith(".yaml"):
        path = Path(name)
        return _read(path, path.parent, small)
    if name not in names():
        raise WorkloadError(f"unknown scenario {name!r} (known: {', '.join(names())}, or a .yaml file)")
    return _read(_folder() / f"{name}.yaml", _folder(), small)


def _folder() -> Traversable:
    return resources.files("benchmarks.scenarios")


def _read(file: Traversable, folder: Traversable, small: bool) -> Scenario:
    try:
        data = yaml.safe_load(_text(file))
        if not isinstance(data, dict):
            raise WorkloadError(f"must be a mapping of keys (given: {quoted(data)})")
        _only(data, _KEYS, "")
        missing = [key for key in _NEEDED if key not in data]
        if missing:
            raise WorkloadError(f"{missing[0]} is missing")
        shrunk = data.pop("small", None)
        name = file.name.removesuffix(".yaml")
        fleet = _fleet(data["fleet"], folder)
        forms = {False: _scenario(name, data, fleet)}
        if shrunk is not None:
            _only(shrunk, _SMALL_KEYS, "small: ")
            forms[True] = _scenario(name, {**data, **shrunk}, fleet)
        if small not in forms:
            raise WorkloadError("has no small form")
        return forms[small]
    except WorkloadError as error:
        raise WorkloadError(f"{file.name}: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise WorkloadError(f"{file.name}{line}: not valid YAML ({error.problem})") from None
    except yaml.YAMLError:
        raise WorkloadError(f"{file.name}: not valid YAML") from None


def _text(file: Traversable) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WorkloadError("cannot be read: not UTF-8 text") from None


def _fleet(name: Any, folder: Traversable) -> FleetConfig:
    if not isinstance(name, str):
        raise WorkloadError(f"fleet must be the name of a file (given: {quoted(name)})")
    try:
        text = _text(folder / name)
    except WorkloadError as error:
        raise WorkloadError(f"fleet {name}: {error}") from None
    return loads(text, name)


def _scenario(name: str, data: Mapping[str, Any], fleet: FleetConfig) -> Scenario:
    about, line = data["about"], data["workload"]
    if not isinstance(about, str) or not isinstance(line, str):
        raise WorkloadError("about and workload must be texts")
    line = " ".join(line.split())
    source, options = _parsed(line)
    return Scenario(
        name=name,
        about=" ".join(about.split()),
        fleet=fleet,
        line=line,
        source=source,
        options=options,
        answers=_answers(data.get("answers"), fleet),
        policies=_policies(data.get("policies")),
        rates=_rates(data["rates"]),
        seeds=_seeds(data["seeds"]),
        losses=_losses(data.get("losses"), fleet),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WorkloadError(message)


def _parsed(line: str) -> tuple[str, BuildOptions]:
    parser = _Parser(prog="workload", add_help=False)
    arguments.add_options(parser)
    try:
        args = parser.parse_args(shlex.split(line))
        return args.name, arguments.options(args)
    except ValueError as error:  # of shlex too
        raise WorkloadError(f"workload: {error}") from None


def _answers(given: Any, fleet: FleetConfig) -> dict[str, Answers]:
    if given is None:
        return {}
    models = [model.name for model in fleet.models]
    found = {}
    for model, each in _mapping(given, "answers").items():
        what = f"answers: {model}: "
        if model not in models:
            raise WorkloadError(f"answers: the fleet has no model {model!r}")
        _only(each, ("length", "quality"), what)
        found[model] = Answers(_number(each, "length", what), _number(each, "quality", what))
    return found


def _policies(given: Any) -> tuple[str, ...]:
    if given is None:
        return USUAL_POLICIES
    if not isinstance(given, list) or not given:
        raise WorkloadError(f"policies must be a list of names (given: {quoted(given)})")
    for name in given:
        if not isinstance(name, str) or name not in policies.POLICIES:
            raise WorkloadError(f"unknown policy {name!r} (known: {', '.join(policies.POLICIES)})")
    if len(set(given)) != len(given):
        raise WorkloadError("policies must be different")
    return tuple(given)


def _rates(given: Any) -> tuple[float, ...]:
    if not isinstance(given, list) or not given or not all(_is_number(rate) and rate > 0 for rate in given):
        raise WorkloadError(f"rates must be a list of numbers above 0 (given: {_shown_list(given)})")
    if len(set(given)) != len(given):
        raise WorkloadError("rates must be different")
    return tuple(float(rate) for rate in given)


def _shown_list(given: Any) -> str:
    return ", ".join(map(quoted, given[:20])) if isinstance(given, list) else quoted(given)


def _seeds(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise WorkloadError(f"seeds must be a whole number of at least 1 (given: {quoted(given)})")
    return given


def _losses(given: Any, fleet: FleetConfig) -> tuple[Loss, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise WorkloadError("losses must be a list of {instance, at, lasts}")
    found: list[Loss] = []
    for each in given:
        _only(each, ("instance", "at", "lasts"), "losses: ")
        instance = each.get("instance")
        if fleet.instance(instance) is None:
            raise WorkloadError(f"losses: the fleet has no instance {instance!r}")
        loss = Loss(instance, _number(each, "at", "losses: "), _number(each, "lasts", "losses: "))
        if not 0 <= loss.at <= 1 or not 0 < loss.lasts <= 1:
            raise WorkloadError(f"losses: {instance}: at and lasts are shares of the span, of at most 1")
        for other in found:
            if other.instance == instance and (
                other.at < loss.at + loss.lasts and loss.at < other.at + other.lasts
            ):
                raise WorkloadError(f"losses: {instance} is lost again before it is back")
        found.append(loss)
    return tuple(found)


# --- shapes --------------------------------------------------------------------------------------------
def _mapping(given: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(given, dict):
        raise WorkloadError(f"{what.rstrip(': ')} must be a mapping")
    return given


def _only(given: Any, known: tuple[str, ...], what: str) -> None:
    for key in _mapping(given, what):
        if key not in known:
            raise WorkloadError(f"{what}unknown key {key!r} (known: {', '.join(known)})")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(given: Mapping[Any, Any], key: str, what: str) -> float:
    if not _is_number(given.get(key)):
        raise WorkloadError(f"{what}{key} must be a number")
    return float(given[key])
