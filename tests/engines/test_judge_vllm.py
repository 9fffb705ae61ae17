"""`headway judge` against a real vLLM on the CPU, whose random weights give no verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router import cli
from tests.contract.backends.engine_suite import KEY
from tests.engines.test_vllm import MODEL, Engine, engine  # noqa: F401 (the fixture)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("words", "asked"), [([], 4), (["--pairwise"], 2), (["--api-key-env", "HEADWAY_TEST_WRONG_KEY"], 4)]
)
def test_everything_is_counted(
    engine: Engine,  # noqa: F811 (the fixture)
    words: list[str],
    asked: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAY_TEST_ENGINE_KEY", KEY)
    monkeypatch.setenv("HEADWAY_TEST_WRONG_KEY", "wrong")
    path = tmp_path / "answers.jsonl"
    rows = [
        {"prompt": prompt, "answer": answer, "model": answer}
        for prompt in ("One?", "Two?")
        for answer in ("1", "2")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    known = ["--url", engine.url, "--model", MODEL, "--api-key-env", "HEADWAY_TEST_ENGINE_KEY"]
    assert cli.main(["judge", *known, "--answers", str(path), "--json", *words]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["judged"] == 0
    wrong = "HEADWAY_TEST_WRONG_KEY" in words
    assert (shown["unreadable"], shown["failed"]) == ((0, asked) if wrong else (asked, 0))
