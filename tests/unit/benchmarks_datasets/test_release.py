"""A release has what licences allow, and a card that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets.public import PUBLIC
from benchmarks.datasets.release import release
from benchmarks.datasets.terms import TERMS
from predictors.learned.text import COUNTS
from predictors.training import dataset
from predictors.training.dataset import Answer, Attempt, Dataset, DatasetError, Prompt, Run
from router.core.types import PromptFeatures
from tests.commands import Headway
from tests.data_files import put
from tests.unit.benchmarks_datasets.published import prompts


def question(name: str, number: int) -> str:
    return " ".join(f"{name}{number}word{i}" for i in range(12))


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """A small folder of four published sets."""
    folder = tmp_path / "data"
    columns = {
        "zeroeval": {"correct": 1, "out_tokens": 7},
        "arena_2023": {"gpt4_score_1_10": 5, "out_tokens": 7},
        "llmrouter": {"score": 0.5},
        "alpaca_eval": {
            "out_tokens": 7,
            "win_vs_gpt4t_weighted": 1,
            "win_vs_gpt4t_fn": "",
            "win_vs_gpt4t_cot": "",
            "win_vs_davinci003": "",
        },
    }
    for name, more in columns.items():
        prompts(folder / name, {f"{name}{n}": question(name, n) for n in range(40)}, task="gsm")
        rows = [{"prompt_id": f"{name}{n}", "model": "m", "task": "gsm"} | more for n in range(40)]
        put(folder / name / "responses.csv.gz", rows)
    return folder


def parts(out: Path) -> tuple[Dataset, Dataset]:
    return dataset.read(out / "train"), dataset.read(out / "held_out")


def test_only_what_may_be_passed_on(public: Path, tmp_path: Path) -> None:
    found = release([str(public)], tmp_path / "out")
    train, held_out = parts(tmp_path / "out")
    assert train.sources == held_out.sources == ["zeroeval"]
    assert set(found.left_out) == {"alpaca_eval", "arena_2023", "llmrouter"}
    assert len(train.prompts) + len(held_out.prompts) == 40
    assert {each.group for each in train.prompts}.isdisjoint(each.group for each in held_out.prompts)
    assert {each.text for each in (*train.prompts, *held_out.prompts)} == {
        question("zeroeval", n) for n in range(40)
    }
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for name in found.left_out:
        assert f"- `{name}`: {TERMS[name].why_not}." in card
    for fault in TERMS["zeroeval"].faults:
        assert fault in card
    written = "".join(path.read_bytes().hex() for path in sorted((tmp_path / "out").rglob("*.gz")))
    again = release([str(public)], tmp_path / "again")
    assert again == found
    assert written == "".join(path.read_bytes().hex() for path in sorted((tmp_path / "again").rglob("*.gz")))


def test_a_non_commercial_release_has_more(public: Path, tmp_path: Path) -> None:
    found = release([str(public)], tmp_path / "out", non_commercial=True)
    assert found.train.sources == ["arena_2023", "zeroeval"]
    assert set(found.left_out) == {"alpaca_eval", "llmrouter"}
    assert "non-commercial use only" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_withdrawn_texts_are_withheld(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "zeroeval"
    prompts(folder, {f"p{n}": question("math", n) for n in range(20)}, task="math-l5")
    row = {"model": "m", "task": "math-l5", "correct": 1, "out_tokens": 7}
    put(folder / "responses.csv.gz", [{"prompt_id": f"p{n}"} | row for n in range(20)])
    found = release([str(tmp_path / "data")], tmp_path / "out")
    assert {each.text for part in (found.train, found.held_out) for each in part.prompts} == {None}
    assert sum(len(part.answers) for part in (found.train, found.held_out)) == 20


def test_of_own_data_there_is_no_text_and_no_session(tmp_path: Path) -> None:
    features = PromptFeatures((1,), (2,), (3,) * len(COUNTS))
    names = [f"q{n}" for n in range(30)]
    own = Dataset(
        prompts=tuple(Prompt(name, name, "collected", features, text=f"secret {name}") for name in names),
        answers=tuple(Answer(name, "m", output_tokens=3) for name in names),
        runs=tuple(Run(f"r{n}", "collected", "a", "m", level=str(n)) for n in range(5)),
        attempts=tuple(
            Attempt(f"r{n}", "m", float(n), 5, prompt="q1", session="team-a")
            for n in range(5)
            for _ in range(2)
        ),
        about={"sources": [{"name": "collected", "licence": "ours"}]},
    )
    dataset.write(own, tmp_path / "own")
    release([str(tmp_path / "own")], tmp_path / "out")
    train, held_out = parts(tmp_path / "out")
    assert len(train.attempts) + len(held_out.attempts) == 10
    assert held_out.attempts
    everything = [*train.prompts, *held_out.prompts, *train.attempts, *held_out.attempts]
    assert not any("secret" in str(each) or "team-a" in str(each) for each in everything)
    assert (
        "| collected | the publisher's own | - | ours | no |" in (tmp_path / "out" / "README.md").read_text()
    )


def test_what_tells_no_licence_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "ours.jsonl", [{"prompt": f"Q{n}", "response": "A"} for n in range(30)])
    with pytest.raises(DatasetError, match="ours: no licence is told"):
        release([str(tmp_path / "ours.jsonl")], tmp_path / "out")


@pytest.mark.parametrize("sources", [[], [{"name": "collected"}], [{"name": "collected", "licence": "NC"}]])
def test_a_licence_is_not_taken_from_another_set_of_that_name(
    tmp_path: Path, sources: list[dict[str, str]]
) -> None:
    features = PromptFeatures((1,), (2,), (3,) * len(COUNTS))
    for name, said in (("one", [{"name": "collected", "licence": "MIT"}]), ("other", sources)):
        rows = [Prompt(f"{name}{n}", f"{name}{n}", "collected", features) for n in range(20)]
        dataset.write(Dataset(prompts=tuple(rows), about={"sources": said}), tmp_path / name)
    for places in (("one", "other"), ("other", "one")):
        with pytest.raises(DatasetError, match="collected: no licence is told, or not the same one"):
            release([str(tmp_path / name) for name in places], tmp_path / "out")


def test_conversations_without_a_right_to_them(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]
    (tmp_path / "sharegpt.json").write_text(json.dumps([{"id": "1", "conversations": said}]))
    with pytest.raises(
        DatasetError, match="nothing may be released: sharegpt: its texts have no clear licence"
    ):
        release([str(tmp_path / "sharegpt.json")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_published_set_has_terms() -> None:
    assert set(PUBLIC) <= set(TERMS)
    for terms in TERMS.values():
        assert (terms.release == "any") != bool(terms.why_not)
        assert terms.texts or not terms.withheld_tasks


@pytest.mark.parametrize(
    ("words", "environment", "error"),
    [
        ([], None, "no data: name data sets, or set HEADWAY_DATA"),
        (["nowhere"], None, "nowhere: there is no such file or folder"),
        (["--held-out", "1"], "data", "--held-out: "),
        (["--out", "data"], "data", "data: is not empty"),
        (["--out", __file__], "data", f"--out {__file__}: must be a folder"),
    ],
)
def test_bad_input_is_one_line(
    public: Path,
    words: list[str],
    environment: str | None,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    headway: Headway,
) -> None:
    monkeypatch.chdir(public.parent)
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    if environment is not None:
        monkeypatch.setenv("HEADWAY_DATA", environment)
    assert error in headway.refusal("dataset", "release", "--out", "new", *words)


def test_the_command_takes_the_data_folder(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headway: Headway
) -> None:
    monkeypatch.setenv("HEADWAY_DATA", str(public))
    shown: dict[str, Any] = headway.json("dataset", "release", "--out", tmp_path / "out")
    counts = {part: [(row["name"], row["prompts"]) for row in rows] for part, rows in shown["rows"].items()}
    train, held_out = parts(tmp_path / "out")
    assert counts == {
        "train": [("zeroeval", len(train.prompts))],
        "held_out": [("zeroeval", len(held_out.prompts))],
    }
    assert set(shown["left_out"]) == {"alpaca_eval", "arena_2023", "llmrouter"}
