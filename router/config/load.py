"""Reads a fleet file and reports all its errors at once."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from router.config.crosscheck import Finding, check_instances, crosscheck
from router.config.document import parse
from router.config.errors import SECRET_KEYS, ConfigError, Path, Problem, masked
from router.config.instances import InstanceConfig
from router.config.models import FleetConfig
from router.config.sections import ServerConfig

#: Of a fleet file: thousands of instances. It takes some seconds for each MiB.
_MAX_BYTES = 4 * 1024 * 1024


def load(path: str | FilePath, *, any_profile: bool = False) -> FleetConfig:
    """Read and check a fleet file. `any_profile`: engine profiles need not be in the catalog, because fitted ones are added.
    Raises ConfigError with all problems, also if the file cannot be read."""
    return loads(text_of(path), str(path), any_profile=any_profile)


def text_of(path: str | FilePath) -> str:
    """The text of a file. Raises ConfigError if it cannot be read or is too large."""
    try:
        with FilePath(path).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(str(path), [Problem((), f"is larger than {_MAX_BYTES // 1024**2} MiB")])
        return content.decode()
    except OSError as error:
        raise ConfigError(str(path), [Problem((), f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [Problem((), "cannot be read: not UTF-8 text")]) from error


def loads(text: str, source: str = "fleet", *, any_profile: bool = False) -> FleetConfig:
    """Like `load`, for a text. `source` is the file name in errors."""
    document = parse(text, source)
    data = {} if document.data is None else document.data
    return check(data, source, document.line, any_profile=any_profile)


def check(
    data: object, source: str, line_of: Callable[[Path], int | None], *, any_profile: bool = False
) -> FleetConfig:
    """Check a fleet file's data. Raises ConfigError with all problems and their lines."""
    if not isinstance(data, Mapping):
        reason = f"must be a mapping of sections (given: {masked(data)})"
        raise ConfigError(source, [Problem((), reason, line_of(()))])
    findings: list[Finding] = []
    try:
        config = FleetConfig.model_validate(data)
    except ValidationError as error:
        findings += in_words(error.errors(), FleetConfig)
    findings += crosscheck(data, any_profile=any_profile)
    if findings:
        problems = [Problem(path, reason, line_of(path)) for path, reason in dict.fromkeys(findings)]
        raise ConfigError(source, sorted(problems, key=lambda problem: problem.line or 0))
    return config


def located(error: ConfigError, path: str | FilePath) -> ConfigError:
    """A problem that a start found with a value of the fleet file, with the value's line. `error` names a section as
    its source."""
    source = str(path)
    try:
        document = parse(text_of(path), source)
    except ConfigError:
        return error  # the file was removed meanwhile
    problems = []
    for each in error.problems:
        at = each.path if error.source == source else (*error.source.split("."), *each.path)
        if len(at) < 2 or at[:1] not in document.lines or each.line is not None:
            return error
        if at[0] == "instances" and isinstance(at[1], str):
            names = [row.get("name") for row in document.data["instances"]]
            at = ("instances", names.index(at[1]), *at[2:]) if at[1] in names else at
        problems.append(Problem(at, each.reason, document.line(at)))
    return ConfigError(source, problems)


def parse_instance(data: object, source: str = "instance") -> InstanceConfig:
    """One instance from decoded JSON (`POST /admin/instances`). Raises ConfigError."""
    try:
        return InstanceConfig.model_validate(data)
    except ValidationError as error:
        raise _refused(source, error, InstanceConfig) from error


def with_instances(fleet: FleetConfig, instances: Iterable[InstanceConfig]) -> FleetConfig:
    """The same fleet with other instances, whose references are checked. Raises ConfigError."""
    whole = fleet.model_copy(update={"instances": tuple(instances)})
    data = whole.model_dump(include={"models", "discovery", "scaling"})
    # Not by `model_dump`, which takes most of the time for thousands of instances.
    data["instances"] = [
        {**vars(each), "serves": {model: vars(served) for model, served in each.serves.items()}}
        for each in whole.instances
    ]
    findings = check_instances(data)
    if findings:
        raise ConfigError("instance", [Problem(path, reason) for path, reason in findings])
    return whole


def with_address(fleet: FleetConfig, **address: object) -> FleetConfig:
    """The same fleet with the `host` or `port` of a command line. Raises ConfigError."""
    try:
        server = ServerConfig.model_validate({**fleet.server.model_dump(exclude_unset=True), **address})
    except ValidationError as error:
        raise _refused("command line", error, ServerConfig) from error
    return fleet.model_copy(update={"server": server})


def _refused(source: str, error: ValidationError, model: type[BaseModel]) -> ConfigError:
    return ConfigError(source, [Problem(path, reason) for path, reason in in_words(error.errors(), model)])


def in_words(errors: Iterable[ErrorDetails], root: type[BaseModel] | None = None) -> list[Finding]:
    """Pydantic's errors for a `root`, in plain words: paths and reasons."""
    found = []
    for error in errors:
        if error["type"] == "too_short" and len(error["input"]) >= error["ctx"]["min_length"]:
            continue  # pydantic counts only the valid items; the others are reported separately
        path = tuple(part for part in error["loc"] if part != "[key]")
        found.append((path, _reason(error, path, root)))
    return found


# Pydantic's words for what YAML names differently.
_WORDS = (
    ("Value error, ", ""),
    ("Input should be", "must be"),
    ("an object", "a mapping"),
    ("String should", "must"),
    ("Tuple should", "must"),
    ("Dictionary should", "must"),
    (" after validation, not 0", ""),
    ("a valid tuple", "a list"),
    ("a valid dictionary", "a mapping"),
    ("a valid string", "text"),
    ("a valid integer", "a whole number"),
    ("a valid number", "a number"),
    ("a valid boolean", "true or false"),
    ("Keys should be strings", "keys must be text"),
)


def _reason(error: ErrorDetails, path: Path, root: type[BaseModel] | None) -> str:
    """One clause in plain words, with the wrong value."""
    kind, value = error["type"], error["input"]
    if kind == "missing":
        return "is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown_key(str(path[-1]), _model_at(root, path[:-1]))
    message = "must be a mapping" if kind in ("model_type", "dataclass_type") else error["msg"]
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    if "[key]" in error["loc"]:
        return f"{message} (the key)"
    if isinstance(value, Mapping | list | tuple | BaseModel) and not kind.endswith("_type"):
        # About several parts together; the message names them.
        name = value.get("name") if isinstance(value, Mapping) else None
        return f"{message} (name: {masked(name, path)})" if isinstance(name, str) else message
    return f"{message} (given: {masked(value, path)})"


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    known = list(model.model_fields) if model is not None else []
    instead = SECRET_KEYS.get(key.lower())
    if instead in known and key not in known:
        what = "the key's SHA-256" if instead == "sha256" else "the name of an environment variable"
        return f"the file must not contain a secret: use {instead} with {what}"
    near = get_close_matches(key[:100], known, n=1)
    if near:
        return f"unknown key (did you mean {near[0]!r}?)"
    return f"unknown key; known: {', '.join(known)}" if known else "unknown key"


def _model_at(root: type[BaseModel] | None, path: Path) -> type[BaseModel] | None:
    """The model class at a path, found by the types of the fields."""
    current: Any = root
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = current.model_fields.get(str(part))
            current = None if field is None else _plain(field.annotation)
        else:
            arguments = [each for each in typing.get_args(current) if each is not Ellipsis]
            current = _plain(arguments[-1]) if arguments else None
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _plain(annotation: Any) -> Any:
    """A type without Annotated and without its `| None`."""
    if hasattr(annotation, "__metadata__"):
        return _plain(annotation.__origin__)
    arguments = typing.get_args(annotation)
    if type(None) in arguments:
        return _plain(next(each for each in arguments if each is not type(None)))
    return annotation
