"""What comes with Headway is trained on what may be, and on nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.datasets.contents import rows_by_source
from benchmarks.training import defaults
from benchmarks.training.defaults import ALLOWED, OPEN_MODELS, only_allowed
from benchmarks.training.originals import dataset, routellm_rows, zeroeval_rows
from benchmarks.workloads.format import WorkloadError
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt, joined

from .made import log

CLOSED = ("gpt-4o-2024-08-06", "claude-3-opus-20240229", "gemini-1.5-pro", "o1-mini-2024-09-12", "yi-large")
NEVER = ("alpaca_eval", "arena_2023", "llmrouter")
OPEN = "Qwen2-7B-Instruct"


def prompts(source: str, task: str, models: tuple[str, ...]) -> Dataset:
    identity = f"{source}/{task}"
    prompt = Prompt(identity, identity, source, prompt_features(task), task)
    given = tuple(Answer(identity, model, None, 100, quality=1.0, quality_kind="correct") for model in models)
    return Dataset((prompt,), given, about={"sources": [{"name": source, "licence": "its own"}]})


def test_only_open_models_answers_to_allowed_tasks_are_left() -> None:
    data = joined(
        [
            *(prompts("zeroeval", task, (OPEN, *CLOSED)) for task in ("gsm", "crux", "math-l5")),
            prompts("routellm", "anatomy", ("mixtral-8x7b-instruct", "gpt-4-1106-preview")),
            *(prompts(source, "chat", (OPEN,)) for source in (*NEVER, "someone-elses")),
            log(source="emulated"),
            log(source="records"),
        ]
    )
    found = only_allowed(data)
    assert {(each.source, each.task) for each in found.prompts} == {
        *(("zeroeval", "gsm"), ("zeroeval", "crux"), ("routellm", "anatomy")),
    }
    assert {each.model for each in found.answers} == {OPEN, "mixtral-8x7b-instruct"}
    assert found.sources == ["emulated", "routellm", "zeroeval"]
    assert {each.run for each in found.attempts} == {"emulated-0"}
    told = {row["name"]: row for row in rows_by_source(found)}
    assert told.keys() == {"emulated", "routellm", "zeroeval"}
    assert told["zeroeval"]["limited_to"]["tasks"] == ["crux", "gsm"]
    assert OPEN in told["zeroeval"]["limited_to"]["models"]
    assert told["routellm"]["limited_to"] == {"models": ["mixtral-8x7b-instruct"]}
    assert only_allowed(found) == found


def test_nothing_that_must_not_ship_is_on_the_list() -> None:
    assert not set(NEVER) & ALLOWED.keys()
    assert OPEN_MODELS.keys() == {"gsm", "crux"}
    for terms in ALLOWED.values():
        for model in terms.models or ():
            assert not model.lower().startswith(
                ("gpt", "claude", "gemini", "o1", "grok", "reka", "command", "deepseek")
            )
            assert not model.startswith(("yi-", "chatgpt"))  # yi-large is served only; Yi-1.5 is open


def test_a_kind_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        defaults.main(["weather"])
    assert end.value.code == 2
    assert "no predictor 'weather'" in capsys.readouterr().err


# --- originals ----------------------------------------------------------------------------------------
def test_zeroeval_originals_are_read(tmp_path: Path) -> None:
    for model, text, right in ((OPEN, "x" * 339, "12"), ("gemma-2-2b-it", "x" * 67_800, "11")):
        output = json.dumps({"reasoning": text, "answer": right})
        rows = [{"question": "How many?", "output": [output], "answer": "12", "dataset": "gsm"}]
        (tmp_path / f"{model}.json").write_text(json.dumps(rows), encoding="utf-8")
    data = dataset({"zeroeval": list(zeroeval_rows(sorted(tmp_path.glob("*.json")), "gsm"))})
    (prompt,) = data.prompts
    assert (prompt.source, prompt.task, prompt.text) == ("zeroeval", "gsm", "How many?")
    short, long = sorted(data.answers, key=lambda each: each.output_tokens or 0)
    assert (short.model, short.family, short.quality, short.capped) == (OPEN, "qwen", 1.0, False)
    assert short.output_tokens == pytest.approx(100, abs=15)
    assert (long.model, long.output_tokens, long.capped, long.quality) == ("gemma-2-2b-it", 4096, True, 0.0)
    assert only_allowed(data).answers == data.answers


ROUTELLM = """\
prompt,mixtral-8x7b-instruct-v0.1,gpt-4-1106-preview,mixtral-8x7b-instruct-v0.1_response
"One, or
two?",True,False," Two, since it is
more than one. "
Three?,False,True,
"""


def test_routellm_originals_are_read(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k_responses.csv"
    path.write_text(ROUTELLM, encoding="utf-8")
    data = dataset({"routellm": list(routellm_rows(path, "gsm8k"))})
    assert [each.text for each in data.prompts] == ["One, or\ntwo?", "Three?"]
    assert {each.model for each in data.answers} == {"mixtral-8x7b-instruct"}
    assert [(each.quality, each.output_tokens) for each in data.answers] == [(1.0, 14), (0.0, None)]
    assert only_allowed(data).answers == data.answers


def test_an_original_in_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mmlu_anatomy.csv"
    path.write_text("prompt,mixtral-8x7b-instruct-v0.1\nWhat?,maybe\n", encoding="utf-8")
    with pytest.raises(
        WorkloadError, match=r"line 2: mixtral-8x7b-instruct-v0\.1: must be 'True' or 'False'"
    ):
        list(routellm_rows(path, "anatomy"))
    path.write_text("prompt,gpt-4\nWhat?,True\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"column mixtral-8x7b-instruct-v0\.1 is missing"):
        list(routellm_rows(path, "anatomy"))


def test_near_copies_across_sources_share_a_group() -> None:
    question = "A farmer has twelve sheep and sells a third of them on Monday, how many are left to her?"
    given = Answer("", OPEN, "qwen", 50)
    data = dataset(
        {"zeroeval": [(question, "gsm", given)], "routellm": [(question + " Answer:", "gsm8k", given)]}
    )
    assert len({each.id for each in data.prompts}) == 2
    assert len({each.group for each in data.prompts}) == 1
    assert {each.prompt for each in data.answers} == {each.id for each in data.prompts}
    assert replace(data.answers[0], prompt="") == given
