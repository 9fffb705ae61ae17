"""The one form of training data (docs/datasets.md): live engines, the gateway's records, published sets and emulated fleets
are all read into it.

A data set is a folder with dataset.json, {"format": 1, "sources": [{"name", "licence", "rows", ...}], ...}, and a file for
each of `TABLES`. Attempts and states are in order of time within a run; times within a run are seconds on one clock. Splits
are by group of prompts (near copies share one; `split_prompts`), and by whole load levels or by time
(`benchmarks.datasets.splits`), never by row.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, FiniteFloat, PlainValidator, TypeAdapter, ValidationError

from predictors.learned.text import COUNTS, HEAD_TOKENS, TAIL_TOKENS
from router.core.profile import EngineProfile
from router.core.types import EndedHow, PromptFeatures

#: Takes what is being done.
Progress = Callable[[str], None]
FORMAT = 1
QUALITY_KINDS = ("correct", "score", "judged", "win", "win_davinci003", "feedback")


class DatasetError(ValueError):
    """A data set that cannot be read or used. The message is one line."""


def _one_of(name: str, choices: Sequence[str]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in choices:
            raise DatasetError(f"{name} is {value!r}: it must be one of {', '.join(choices)}")
        return value

    return AfterValidator(check)


def _features(value: Any) -> PromptFeatures:
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(isinstance(part, list) and all(type(n) is int for n in part) for part in value)
    ):
        raise DatasetError("features must be three lists of whole numbers")
    head, tail, counts = value
    if len(head) > HEAD_TOKENS or len(tail) > TAIL_TOKENS or len(counts) != len(COUNTS):
        raise DatasetError(
            f"features must be at most {HEAD_TOKENS} and {TAIL_TOKENS} words, and {len(COUNTS)} counts"
        )
    if not all(0 <= word < 2**16 for word in (*head, *tail)) or min(counts) < 0:
        raise DatasetError("features must be words from 0 to 65,535 and counts from 0")
    return PromptFeatures(*map(tuple, value))


def _profile_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        profile = TypeAdapter(EngineProfile).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise DatasetError(f"profile_values: {_problem(error)}") from None
    known = asdict(profile)
    if unknown := values.keys() - known.keys():
        raise DatasetError(f"profile_values: {min(unknown)} is unknown")
    for name, value in known.items():
        least = 1 if isinstance(value, int) else 0
        if not isinstance(value, str | bool) and not least <= value < math.inf:
            raise DatasetError(f"profile_values: {name} is {value}: it must be at least {least}")
    if profile.step_s(1, 0, 0.0) <= 0:
        raise DatasetError("profile_values: a step takes no time")
    return values


#: Of tokens and of requests: no engine's context or answer is longer, nor its queue.
_Count = Annotated[int, Field(ge=0, le=100_000_000)]
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
#: Seconds since the epoch, up to the year 9999. Milliseconds would be beyond it.
_Epoch = Annotated[FiniteFloat, Field(ge=0, le=253_402_214_400)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`id` is unique in the set. Near copies share a `group`. `source` names the published set or other origin. `task`
    is the source's own label, known to baselines and reports, never to a predictor. `text` is None where only features
    were kept."""

    id: str
    group: str
    source: str
    features: Annotated[PromptFeatures, PlainValidator(_features)]
    task: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`model` is the name in its source, `family` as in a fleet file. `capped`: the answer was cut at `output_tokens`,
    so its length would have been at least that. `quality` is in [0, 1]; `quality_kind` is one of `QUALITY_KINDS`. `at_s` is
    the time since the epoch where the log has one."""

    prompt: str
    model: str
    family: str | None = None
    output_tokens: _Count | None = None
    capped: bool = False
    quality: _Share | None = None
    quality_kind: Annotated[str, _one_of("quality_kind", QUALITY_KINDS)] | None = None
    at_s: _Epoch | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One instance over one stretch of time. `level` names its load (whole levels are held out together). `replicas` is
    larger than 1 for the log of a cluster that does not identify its members. `profile` names the engine profile to
    predict with, None for the generic one; `profile_values` gives its constants (`EngineProfile`). `kind` is the engine's
    ("vllm", "ollama", "openai" or one of your own). `fixed_slots`: the engine decodes in its profile's slots (None: unknown)."""

    id: str
    source: str
    instance: str
    model: str
    kind: str = "vllm"
    family: str | None = None
    hardware: str | None = None
    level: str | None = None
    replicas: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    speed: Annotated[FiniteFloat, Field(ge=0.0001, le=10_000)] = 1.0
    profile: str | None = None
    profile_values: Annotated[Mapping[str, Any], AfterValidator(_profile_values)] | None = None
    started_at_s: _Epoch | None = None  # since the epoch
    fixed_slots: bool | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request at an instance. `prompt_tokens` is the engine's count where known; `cached_tokens` is how many of
    them its prefix cache should have held. `ended_how` as in the records ("ok", "failed", "cancelled", "hedge_lost"). A
    request without `first_token_s` that did not end "ok" shows only that its TTFT would have been longer. If
    it did not end "ok", `output_tokens` are those so far. `prompt` is the id of its prompt, `session` of its conversation
    or user."""

    run: str
    model: str
    dispatched_s: FiniteFloat
    prompt_tokens: _Count
    first_token_s: FiniteFloat | None = None
    ended_s: FiniteFloat | None = None
    output_tokens: _Count | None = None
    max_tokens: _Count | None = None
    cached_tokens: _Count | None = None
    ended_how: Annotated[str, _one_of("ended_how", tuple(EndedHow))] = "ok"
    prompt: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A load report of an engine at one moment (`router.core.types.LoadReport`)."""

    run: str
    at_s: FiniteFloat
    running: _Count | None = None
    waiting: _Count | None = None
    kv_usage: _Share | None = None


RowOfRun = TypeVar("RowOfRun", Attempt, State)


@dataclass(frozen=True, slots=True)
class Dataset:
    """All tables in memory. `about` is the header without `format`."""

    prompts: tuple[Prompt, ...] = ()
    answers: tuple[Answer, ...] = ()
    runs: tuple[Run, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    states: tuple[State, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sources(self) -> list[str]:
        """Names of its sources, in order."""
        found = {each.source for each in self.prompts} | {each.source for each in self.runs}
        return sorted(found)

    def keep(
        self, prompt: Callable[[Prompt], bool] | None = None, run: Callable[[Run], bool] | None = None
    ) -> Dataset:
        """The part with the wanted prompts and runs (None: all), and what belongs to them."""
        prompts = self.prompts if prompt is None else tuple(filter(prompt, self.prompts))
        runs = self.runs if run is None else tuple(filter(run, self.runs))
        prompt_ids = {each.id for each in prompts}
        run_ids = {each.id for each in runs}
        return Dataset(
            prompts,
            tuple(each for each in self.answers if each.prompt in prompt_ids),
            runs,
            tuple(each for each in self.attempts if each.run in run_ids),
            tuple(each for each in self.states if each.run in run_ids),
            self.about,
        )


def by_run(rows: Iterable[RowOfRun]) -> dict[str, list[RowOfRun]]:
    """Attempts or states by the id of their run; an empty list for a run without any."""
    found: dict[str, list[RowOfRun]] = defaultdict(list)
    for row in rows:
        found[row.run].append(row)
    return found


def joined(parts: Iterable[Dataset]) -> Dataset:
    """Several data sets as one. Raises DatasetError where one id means two prompts or two runs."""
    sets = list(parts)
    prompts: dict[str, Prompt] = {}
    for each in sets:
        for prompt in each.prompts:
            if prompts.setdefault(prompt.id, prompt).features != prompt.features:
                raise DatasetError(f"two data sets have different prompts of the id {prompt.id}")
    runs = [run for each in sets for run in each.runs]
    if len({run.id for run in runs}) != len(runs):
        raise DatasetError("two data sets have runs of the same id")
    return Dataset(
        tuple(prompts.values()),
        tuple(answer for each in sets for answer in each.answers),
        tuple(runs),
        tuple(attempt for each in sets for attempt in each.attempts),
        tuple(state for each in sets for state in each.states),
        {"sources": [source for each in sets for source in _described(each)]},
    )


def _described(data: Dataset) -> list[dict[str, Any]]:
    """A set's descriptions of its sources; of a source without one, its name."""
    described = list(data.about.get("sources", ()))
    names = {each["name"] for each in described}
    return described + [{"name": name} for name in data.sources if name not in names]


# --- splits -------------------------------------------------------------------------------------------
def fraction_of(name: str, seed: int = 0) -> float:
    """A number in [0, 1) that depends only on a name, so that a split is the same wherever it is made."""
    return int.from_bytes(sha256(f"{seed}:{name}".encode()).digest()[:8], "big") / 2**64


def split_prompts(data: Dataset, held_out: float = 0.2, seed: int = 0) -> tuple[Dataset, Dataset]:
    """(training part, held-out part) by group of prompts. Runs go with the training part."""

    def is_out(prompt: Prompt) -> bool:
        return fraction_of(prompt.group, seed) < held_out

    return data.keep(prompt=lambda each: not is_out(each)), data.keep(prompt=is_out, run=lambda _: False)


# --- files --------------------------------------------------------------------------------------------
#: The tables by name, with the class of their rows.
TABLES: tuple[tuple[str, type[Any]], ...] = (
    ("prompts", Prompt),
    ("answers", Answer),
    ("runs", Run),
    ("attempts", Attempt),
    ("states", State),
)


def write(data: Dataset, folder: Path) -> None:
    """Write a data set. The same content gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, _ in TABLES:
        path = folder / f"{name}.jsonl.gz"
        with path.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
            for row in getattr(data, name):
                values = {key: value for key, value in asdict(row).items() if value is not None}
                if name == "prompts":
                    values["features"] = [list(part) for part in row.features]
                file.write(json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    header = {"format": FORMAT, **data.about}
    (folder / "dataset.json").write_text(json.dumps(header, indent=1, sort_keys=True) + "\n")


def read(folder: Path) -> Dataset:
    """Read a data set. Raises DatasetError naming file, line and member of what is missing or wrong."""
    path = folder / "dataset.json"
    if not path.is_file():
        raise DatasetError(f"{folder}: no data set (it has no dataset.json)")
    try:
        header = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: is not valid JSON") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DatasetError(f'{path}: must be an object with "format": {FORMAT}')
    sources = header.get("sources", [])
    if not isinstance(sources, list) or not all(
        isinstance(each, dict)
        and isinstance(each.get("name"), str)
        and isinstance(each.get("licence"), str | None)
        for each in sources
    ):
        raise DatasetError(
            f"{path}: sources must be a list of objects with a name, and a licence that is a text"
        )
    tables = {name: tuple(_rows(folder / f"{name}.jsonl.gz", row)) for name, row in TABLES}
    data = Dataset(**tables, about={key: value for key, value in header.items() if key != "format"})
    _check_references(data, folder)
    return data


def _check_references(data: Dataset, folder: Path) -> None:
    for what, rows in (("prompt", data.prompts), ("run", data.runs)):
        if repeated := _repeated(each.id for each in rows):
            raise DatasetError(f"{folder}: the id {repeated} is in {what}s.jsonl.gz twice")
    if answer := _repeated(each for each in data.answers if each.at_s is not None):
        raise DatasetError(
            f"{folder}: the answer of {answer.model} to {answer.prompt} at one time is there twice"
        )
    prompts, runs = {each.id for each in data.prompts}, {each.id for each in data.runs}
    for answer in data.answers:
        if answer.prompt not in prompts:
            raise DatasetError(
                f"{folder}: answers.jsonl.gz has the prompt {answer.prompt}, which prompts.jsonl.gz lacks"
            )
    for run in (*(each.run for each in data.attempts), *(each.run for each in data.states)):
        if run not in runs:
            raise DatasetError(f"{folder}: a row has the run {run}, which runs.jsonl.gz lacks")


def _repeated(rows: Iterable[Any]) -> Any:
    """One that is there more than once, or None."""
    found: set[Any] = set()
    return next((each for each in rows if each in found or found.add(each)), None)  # type: ignore[func-returns-value]


def _rows(path: Path, row: type[Any]) -> Iterable[Any]:
    if not path.is_file():
        return
    adapter: TypeAdapter[Any] = TypeAdapter(row)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line, text in enumerate(file, start=1):
                try:
                    yield adapter.validate_json(text, strict=True)
                except ValidationError as error:
                    raise DatasetError(f"{path}, line {line}: {_problem(error)}") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: not a whole gzip file") from error


def _problem(error: ValidationError) -> str:
    """The first problem in a row, in words."""
    first = error.errors(include_url=False)[0]
    kind, limits = first["type"], first.get("ctx", {})
    name = ".".join(map(str, first["loc"]))
    match kind:
        case "value_error":  # one of ours
            return str(limits["error"])
        case "json_invalid":
            return f"no JSON ({limits['error']})"
        case "dataclass_type":
            return "not an object"
        case "missing":
            return f"{name} is missing"
        case "finite_number":
            return f"{name} is not a finite number"
        case "greater_than_equal":
            return f"{name} is {first['input']}: it must be at least {limits['ge']:,}"
        case "less_than_equal":
            return f"{name} is {first['input']}: it must be at most {limits['le']:,}"
    return f"{name} must be {kind.removesuffix('_type')}"
