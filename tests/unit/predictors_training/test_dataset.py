"""The form of training data: what is written comes back, what is broken is named, splits keep groups together."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from predictors.learned.text import prompt_features
from predictors.training.dataset import (
    Answer,
    Attempt,
    Dataset,
    DatasetError,
    Prompt,
    Run,
    State,
    joined,
    read,
    split_prompts,
    write,
)
from router.core.profile import EngineProfile

PROFILE = EngineProfile("m@l4", 0.004, 0.012, 1e-4, 2e-7, 1e-8, 40_000)


def prompt(name: str, group: str | None = None) -> Prompt:
    return Prompt(
        name, group or name, "made", prompt_features(f"what is {name}?"), "task", f"what is {name}?"
    )


ANSWER = {"prompt": "p0", "model": "m"}
PROFILE_ROW = asdict(PROFILE)
ATTEMPT = {"run": "r0", "model": "m", "dispatched_s": 0, "prompt_tokens": 1}
RUN = {"id": "r", "source": "s", "instance": "i", "model": "m"}
NO_TIME = {"overhead_s": 0, "floor_s": 0, "per_token_s": 0}
PROMPT = {"id": "p", "group": "p", "source": "s"}


def made(prompts: int = 40, runs: int = 12) -> Dataset:
    return Dataset(
        tuple(prompt(f"p{i}", f"g{i // 2}") for i in range(prompts)),
        tuple(
            Answer(f"p{i}", "llama-3.1-8b", "llama", 10 + i, i % 7 == 0, 0.5, "score") for i in range(prompts)
        ),
        tuple(
            Run(f"r{i}", "made", f"i{i}", "m", level=str(i % 4), profile_values=PROFILE_ROW)
            for i in range(runs)
        ),
        tuple(Attempt(f"r{i}", "m", 0.5 * k, 100, 0.5 * k + 0.1) for i in range(runs) for k in range(3)),
        tuple(State(f"r{i}", 1.0, 2, None, 0.25) for i in range(runs)),
        {"sources": [{"name": "made", "licence": "none", "rows": 1}]},
    )


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    data = made()
    write(data, tmp_path)
    assert read(tmp_path) == data


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(made(), tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("table", "line", "message"),
    [
        ("answers", {"prompt": "p0"}, "answers.jsonl.gz, line 1: model is missing"),
        ("answers", ANSWER | {"output_tokens": "7"}, "output_tokens must be int"),
        ("answers", ANSWER | {"output_tokens": True}, "output_tokens must be int"),
        ("answers", {"prompt": "nobody", "model": "m"}, "the prompt nobody, which prompts.jsonl.gz lacks"),
        (
            "attempts",
            {"run": "nobody", "model": "m", "dispatched_s": 0, "prompt_tokens": 1},
            "the run nobody",
        ),
        ("states", [1, 2], "states.jsonl.gz, line 1: not an object"),
        ("prompts", {"id": "p", "group": "p", "source": "s", "features": [[1], [2]]}, "three lists"),
        ("answers", ANSWER | {"output_tokens": -50}, "line 1: output_tokens is -50"),
        ("answers", ANSWER | {"output_tokens": 10**12}, "it must be at most 100,000,000"),
        ("answers", ANSWER | {"quality": 5.0}, "quality is 5.0: it must be at most 1"),
        ("answers", ANSWER | {"quality_kind": "nonsense"}, "one of correct, score"),
        ("answers", ANSWER | {"at_s": 1.7e12}, "it must be at most 253,402,214,400"),
        ("runs", RUN | {"started_at_s": -1.0}, "started_at_s is -1.0"),
        ("attempts", ATTEMPT | {"prompt_tokens": -7}, "line 1: prompt_tokens is -7"),
        ("attempts", ATTEMPT | {"max_tokens": -4}, "max_tokens is -4"),
        ("attempts", ATTEMPT | {"cached_tokens": -1}, "cached_tokens is -1"),
        ("attempts", ATTEMPT | {"ended_how": "nonsense"}, "ended_how is 'nonsense': it must be one of ok"),
        ("runs", RUN | {"speed": 0}, "speed is 0: it must be at least 0.0001"),
        ("runs", RUN | {"speed": -1.0}, "speed is -1.0"),
        ("runs", RUN | {"replicas": 0}, "replicas is 0"),
        ("runs", RUN | {"profile_values": {"overhead_s": 1}}, "line 1: profile_values: name is missing"),
        ("runs", RUN | {"profile_values": PROFILE_ROW | {"slots": "x"}}, "profile_values: slots must be int"),
        (
            "runs",
            RUN | {"profile_values": PROFILE_ROW | {"floor_s": -1}},
            "floor_s is -1.0: it must be at least 0",
        ),
        ("runs", RUN | {"profile_values": PROFILE_ROW | {"colour": 1}}, "colour is unknown"),
        ("runs", RUN | {"profile_values": PROFILE_ROW | NO_TIME}, "a step takes no time"),
        ("states", {"run": "r0", "at_s": 1.0, "kv_usage": -5.0}, "kv_usage is -5.0"),
        ("states", {"run": "r0", "at_s": 1.0, "running": -3}, "running is -3"),
        ("prompts", PROMPT | {"features": [[-1], [5], [1] * 8]}, "words from 0 to 65,535"),
        ("prompts", PROMPT | {"features": [[1], [5], [1] * 7 + [-1]]}, "counts from 0"),
        (
            "prompts",
            PROMPT | {"features": [[1] * 129, [5], [1] * 8]},
            "at most 128 and 64 words, and 8 counts",
        ),
        ("prompts", PROMPT | {"features": [[1], [5], [1]]}, "8 counts"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, table: str, line: object, message: str) -> None:
    write(made(), tmp_path)
    with gzip.open(tmp_path / f"{table}.jsonl.gz", "wt") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(DatasetError, match=message) as error:
        read(tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("prompts", "the id p0 is in prompts.jsonl.gz twice"),
        ("runs", "the id r0 is in runs.jsonl.gz twice"),
        ("answers", "the answer of llama-3.1-8b to p0 at one time is there twice"),
    ],
)
def test_a_row_that_is_there_twice_is_named(tmp_path: Path, table: str, message: str) -> None:
    data = made()
    data = replace(data, answers=tuple(replace(each, at_s=1.0) for each in data.answers))
    write(replace(data, **{table: (*getattr(data, table), getattr(data, table)[0])}), tmp_path)
    with pytest.raises(DatasetError, match=message):
        read(tmp_path)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    write(made(), tmp_path)
    with gzip.open(tmp_path / "states.jsonl.gz", "wt") as file:
        file.write('{"run": "r0", "at_s": NaN}\n')
    with pytest.raises(DatasetError, match="at_s is not a finite number"):
        read(tmp_path)


def test_a_torn_file_and_a_missing_one(tmp_path: Path) -> None:
    write(made(), tmp_path)
    path = tmp_path / "attempts.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DatasetError, match="not a whole gzip file"):
        read(tmp_path)
    path.unlink()
    assert read(tmp_path).attempts == ()
    with pytest.raises(DatasetError, match="no data set"):
        read(tmp_path / "nowhere")
    for text, told in (
        ('{"format": 1, "sources": [{"licence": "MIT"}]}', "a list of objects with a name"),
        ('{"format": 1, "sources": [{"name": "s", "licence": ["MIT"]}]}', "a licence that is a text"),
        ("[" * 99_999, "is not valid JSON"),
        ('{"format": 99}', 'with "format": 1'),
    ):
        (tmp_path / "dataset.json").write_text(text)
        with pytest.raises(DatasetError, match=told):
            read(tmp_path)


def test_prompts_are_split_by_group() -> None:
    data = made()
    train, test = split_prompts(data, 0.3)
    assert {each.group for each in train.prompts}.isdisjoint({each.group for each in test.prompts})
    assert len(train.prompts) + len(test.prompts) == len(data.prompts)
    assert 0 < len(test.prompts) < len(train.prompts)
    assert {each.prompt for each in test.answers} == {each.id for each in test.prompts}
    assert train.runs == data.runs
    assert test.runs == ()
    assert split_prompts(data, 0.3, seed=1)[1].prompts != test.prompts


def test_joined_keeps_all_and_refuses_equal_runs() -> None:
    one, other = made(), Dataset(prompts=(prompt("new"),), about={"sources": [{"name": "other"}]})
    both = joined([one, other])
    assert len(both.prompts) == len(one.prompts) + 1
    assert [each["name"] for each in both.about["sources"]] == ["made", "other", "made"]
    with pytest.raises(DatasetError, match="runs of the same id"):
        joined([one, one])


def test_one_id_of_two_prompts_is_refused() -> None:
    """The answers to one would be learned as answers to the other."""
    one = replace(made(), runs=(), attempts=(), states=())
    without_text = replace(one, prompts=tuple(replace(each, text=None) for each in one.prompts))
    assert joined([one, without_text]).prompts == one.prompts
    other = Dataset(prompts=(replace(prompt("another"), id="p3"),))
    with pytest.raises(DatasetError, match="two data sets have different prompts of the id p3"):
        joined([one, other])


def test_an_engine_kind_of_ones_own_is_kept(tmp_path: Path) -> None:
    write(Dataset(runs=(Run("r", "made", "i", "m", kind="sglang"),)), tmp_path)
    assert read(tmp_path).runs[0].kind == "sglang"
