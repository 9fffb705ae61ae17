"""Conversations as they are published: LMSYS-Chat-1M, ShareGPT, and data sets of the Hugging Face hub in the usual forms
(docs/datasets.md has them). Of a conversation the first exchange is read: what comes later depends on it."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.datasets.contents import with_source
from benchmarks.datasets.groups import groups
from benchmarks.datasets.terms import TERMS
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import json_lines, json_value
from benchmarks.workloads.sources.arena import CHARACTERS_PER_TOKEN
from benchmarks.workloads.sources.prompt_sets import prompt_id, tokens_of_characters
from predictors.learned.names import family_of
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt, fraction_of

#: Of more conversations so many are read; a hash of the prompt decides which.
MOST = 50_000
_SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
_TURNS = ("conversation", "conversations", "messages")
_PROMPTS = ("prompt", "instruction", "question")
_ANSWERS = ("response", "answer", "output", "completion")
_USERS, _MODELS = {"user", "human"}, {"assistant", "gpt", "chatgpt"}
_BATCH_ROWS = 1000
#: On another scale a 1 may be the worst, so one such quality makes all of them unknown.
_OTHER_SCALE = "all qualities, because of so many that are not from 0 to 1"


class _Exchange(NamedTuple):
    """A prompt and a model's answer to it."""

    prompt: str
    answer: str
    model: str | None
    quality: float | None


def is_conversations(path: Path) -> bool:
    """Whether a file, or a folder by a file in it, looks like conversations by its name."""
    return bool(_files(path))


def read_conversations(path: Path) -> Dataset:
    """Read a file, or all files of a folder. The source is named by its form, else by the file or folder; it is no published
    set by its name alone. Raises DatasetError."""
    name = path.name.partition(".")[0].replace("-", "_").lower()
    if name in TERMS:
        name += "_file"
    skipped: Counter[str] = Counter()

    def exchanges() -> Iterator[_Exchange]:
        nonlocal name
        for file in _files(path):
            for row in _rows(file):
                name = _known_form(row) or name
                found = _exchange(row)
                if found is None:
                    skipped["rows without a first prompt and its answer"] += 1
                else:
                    if found.quality is not None and not 0 <= found.quality <= 1:
                        skipped[_OTHER_SCALE] += 1
                    yield found

    try:
        kept = heapq.nsmallest(MOST, exchanges(), key=lambda each: fraction_of(prompt_id(each.prompt)))
    except WorkloadError as error:
        raise DatasetError(str(error)) from None
    if not kept:
        raise DatasetError(f"{path}: has no conversation in a known form")
    return _dataset(name, kept, skipped)


def _dataset(name: str, exchanges: Iterable[_Exchange], skipped: Mapping[str, int]) -> Dataset:
    texts: dict[str, str] = {}
    answers: dict[tuple[str, str], Answer] = {}
    for each in exchanges:
        prompt = f"{name}/{prompt_id(each.prompt)}"
        texts.setdefault(prompt, each.prompt)
        model = each.model or ("chatgpt" if name == "sharegpt" else name)
        tokens = tokens_of_characters(len(each.answer), CHARACTERS_PER_TOKEN)
        quality = None if _OTHER_SCALE in skipped else each.quality
        kind = None if quality is None else "score"
        answer = Answer(prompt, model, family_of(model), tokens, quality=quality, quality_kind=kind)
        answers.setdefault((prompt, model), answer)
    group = groups(texts)
    prompts = [Prompt(key, group[key], name, prompt_features(text), text=text) for key, text in texts.items()]
    return with_source(
        Dataset(tuple(prompts), tuple(answers.values())),
        name,
        TERMS[name].licence if name in TERMS else None,
        ("prompts", "answers"),
        lengths="estimated from characters",
        limited_to=MOST,
        skipped=dict(skipped),
    )


def _known_form(row: Mapping[str, Any]) -> str | None:
    """The name of the published set whose form a row has."""
    if "conversation" in row and "conversation_id" in row and "model" in row:
        return "lmsys_chat_1m"
    turns = row.get("conversations")
    return "sharegpt" if isinstance(turns, list) and turns and "from" in _object(turns[0]) else None


def _exchange(row: Mapping[str, Any]) -> _Exchange | None:
    """The first exchange of a row; None if there is none."""
    turns = next((row[name] for name in _TURNS if isinstance(row.get(name), list)), None)
    if turns is None:
        said = [_text(row, _PROMPTS), _text(row, _ANSWERS)]
        if said[0] and isinstance(row.get("input"), str) and row["input"]:  # of an instruction
            said[0] = f"{said[0]}\n\n{row['input']}"
    else:
        spoken = [_turn(_object(each)) for each in turns]
        spoken = [each for each in spoken if each[0] != "system"]
        if len(spoken) < 2 or spoken[0][0] not in _USERS or spoken[1][0] not in _MODELS:
            return None
        said = [spoken[0][1], spoken[1][1]]
    prompt, answer = said
    if not prompt or not prompt.strip() or not answer:
        return None
    return _Exchange(prompt, answer, _text(row, ("model",)) or None, _number(row.get("quality")))


def _number(value: Any) -> float | None:
    """None for anything else; NaN is an unknown number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _turn(turn: Mapping[str, Any]) -> tuple[str, str]:
    """Role and text."""
    role = turn.get("role", turn.get("from"))
    return str(role).lower(), _text(turn, ("content", "value")) or ""


def _text(row: Mapping[str, Any], names: Iterable[str]) -> str | None:
    return next((row[name] for name in names if isinstance(row.get(name), str)), None)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- files --------------------------------------------------------------------------------------------
def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if path.name.endswith(_SUFFIXES) else []
    return sorted(each for each in path.rglob("*") if each.is_file() and each.name.endswith(_SUFFIXES))


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a file. Raises WorkloadError."""
    if path.suffix == ".parquet":
        yield from _parquet(path)
    elif ".jsonl" in path.name:
        yield from (row for _, row in json_lines(path))
    else:
        found = json_value(path)
        yield from map(_object, found if isinstance(found, list) else [found])


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    wanted = {*_TURNS, *_PROMPTS, *_ANSWERS, "conversation_id", "input", "model", "quality"}
    try:
        file = parquet.ParquetFile(path)
        columns = [name for name in file.schema_arrow.names if name in wanted]
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise WorkloadError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None
