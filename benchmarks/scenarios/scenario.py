"""Scenarios: what is compared, in the words of the command line ("The file" in docs/scenarios.md). All of a file is checked when
it is read, in both forms."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

import policies
from benchmarks.checks import first_problem
from benchmarks.scenarios.answers import Answers, with_answers
from benchmarks.workloads import arguments
from benchmarks.workloads.build import build
from benchmarks.workloads.format import Header, WorkloadError, WorkloadRequest
from benchmarks.workloads.options import BuildOptions
from router.config import ConfigError, FleetConfig, Problem, loads
from router.config.document import Document, parse
from router.config.fields import Count, Positive, Section, Share, Text

#: What a simulation compares by default: each objective and the usual baselines, not every rule of a paper.
USUAL_POLICIES = (
    *("random", "round_robin", "least_load", "power_of_two", "lmetric"),
    *("price", "latency", "slo", "relevance", "cost"),
)
_Place = tuple[str | int, ...]


def _known(name: str) -> str:
    if name not in policies.POLICIES:
        raise PydanticCustomError(
            "policy", "unknown policy; known: {known}", {"known": ", ".join(policies.POLICIES)}
        )
    return name


def _different(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(items)) < len(items):
        raise PydanticCustomError("twice", "must be different")
    return items


@dataclass(frozen=True, slots=True)
class Loss:
    """An instance is lost `at` a share of the workload's span and back after another share."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    instance: str
    at: Share
    lasts: Annotated[Positive, Field(le=1)]

    def meets(self, other: Loss) -> bool:
        """Whether both are of one instance at one time."""
        return (
            self.instance == other.instance
            and other.at < self.at + self.lasts
            and self.at < other.at + other.lasts
        )


_Line = Annotated[Text, AfterValidator(lambda text: " ".join(text.split()))]


class Form(Section):
    """One form of a scenario file. `workload` has the arguments of `headway workload build`; `answers` are by model, where the
    source has none of its own."""

    about: _Line
    fleet: Text
    workload: _Line
    rates: Annotated[tuple[Positive, ...], Field(min_length=1), AfterValidator(_different)]
    seeds: Count
    answers: dict[str, Answers] = Field(default_factory=dict)
    policies: Annotated[
        tuple[Annotated[str, AfterValidator(_known)], ...], Field(min_length=1), AfterValidator(_different)
    ] = USUAL_POLICIES
    losses: tuple[Loss, ...] = ()
    #: What differs in the small form.
    small: dict[Literal["workload", "answers", "rates", "seeds", "losses"], Any] | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario in its full or small form, with its fleet. `source` and `options` are the arguments of the workload, parsed."""

    name: str
    form: Form
    fleet: FleetConfig
    source: str
    options: BuildOptions

    def requests(self, seed: int, environment: Mapping[str, str]) -> tuple[Header, list[WorkloadRequest]]:
        """The workload of a seed: it draws prompts, routing parameters and, for generators, everything."""
        header, requests = build(self.source, replace(self.options, seed=seed), environment)
        if self.form.answers:
            header = replace(header, details={**header.details, "answers": self.made_of()["answers"]})
            requests = list(with_answers(requests, self.form.answers, seed))
        return header, requests

    def made_of(self) -> dict[str, Any]:
        """What identifies its workload."""
        answers = {model: asdict(answers) for model, answers in self.form.answers.items()}
        return {"line": self.form.workload, "answers": answers}


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
        return _Reader(path, path.parent).scenario(small)
    if name not in names():
        raise WorkloadError(f"unknown scenario {name!r} (known: {', '.join(names())}, or a .yaml file)")
    return _Reader(_folder() / f"{name}.yaml", _folder()).scenario(small)


def _folder() -> Traversable:
    return resources.files("benchmarks.scenarios")


def _text(file: Traversable, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{shown}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise WorkloadError(f"{shown}: cannot be read: not UTF-8 text") from None


class _Reader:
    """A scenario file, whose errors name the file, the line and the key."""

    def __init__(self, file: Traversable, folder: Traversable) -> None:
        self._name, self._folder = file.name, folder
        try:
            self._document: Document = parse(_text(file, file.name), file.name)
        except ConfigError as error:
            raise WorkloadError(str(error).partition("\n")[0]) from None
        if not isinstance(self._document.data, dict) or not self._document.data:
            raise self._wrong((), "must be a mapping of keys")
        #: A key without a value counts as left out.
        self._data = {key: value for key, value in self._document.data.items() if value is not None}

    def scenario(self, small: bool) -> Scenario:
        """The full or the small form; both are checked."""
        whole = self._checked(self._data)
        fleet = loads(_text(self._folder / whole.fleet, f"{self._name}: fleet {whole.fleet}"), whole.fleet)
        forms = {False: self._form(whole, fleet)}
        if whole.small is not None:
            changed = frozenset[str](whole.small)
            data = self._data | dict(whole.small.items())
            forms[True] = self._form(self._checked(data, changed), fleet, changed)
        if small not in forms:
            raise self._wrong((), "has no small form")
        return forms[small]

    def _checked(self, data: Mapping[str, Any], small: frozenset[str] = frozenset()) -> Form:
        try:
            return Form.model_validate(data)
        except ValidationError as error:
            raise self._wrong(*first_problem(error, Form), small) from None

    def _wrong(self, path: _Place, reason: str, small: frozenset[str] = frozenset()) -> WorkloadError:
        """The error of a path. `small`: the keys that stand in the small form."""
        if path and path[0] in small:
            path = ("small", *path)
        line = self._document.line(path)
        return WorkloadError(str(ConfigError(self._name, [Problem(path, reason, line)])))

    def _form(self, form: Form, fleet: FleetConfig, small: frozenset[str] = frozenset()) -> Scenario:
        try:
            source, options = _parsed(form.workload)
        except ValueError as error:  # of shlex too
            raise self._wrong(("workload",), str(error), small) from None
        models = {model.name for model in fleet.models}
        for model in form.answers:
            if model not in models:
                raise self._wrong(("answers", model), "the fleet has no such model", small)
        for at, loss in enumerate(form.losses):
            if fleet.instance(loss.instance) is None:
                raise self._wrong(
                    ("losses", at, "instance"), f"the fleet has no instance {loss.instance!r}", small
                )
            if any(loss.meets(other) for other in form.losses[:at]):
                raise self._wrong(("losses", at), f"{loss.instance} is lost again before it is back", small)
        return Scenario(self._name.removesuffix(".yaml"), form, fleet, source, options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WorkloadError(message)


def _parsed(line: str) -> tuple[str, BuildOptions]:
    parser = _Parser(prog="workload", add_help=False)
    arguments.add_options(parser)
    parser.set_defaults(seed=None)
    args = parser.parse_args(shlex.split(line))
    if args.seed is not None:
        raise WorkloadError("workload: --seed: the scenario's seeds are used")
    args.seed = 0
    return args.name, arguments.options(args)
