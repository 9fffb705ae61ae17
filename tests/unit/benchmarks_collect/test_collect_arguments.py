"""Bad input is one clear line on stderr and exit 2, before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import Headway

FLEET = """\
models: [{name: m}]
instances: [{name: a, kind: vllm, url: "http://127.0.0.1:1", serves: {m: m}}]
"""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, list[str]]:
    """Arguments that are right, by name."""
    (tmp_path / "p.txt").write_text("one\n", encoding="utf-8")
    (tmp_path / "fleet.yaml").write_text(FLEET, encoding="utf-8")
    return {
        "config": ["--config", str(tmp_path / "fleet.yaml")],
        "prompts": ["--prompts", str(tmp_path / "p.txt")],
        "rates": ["--rates", "1,2"],
        "out": ["--out", str(tmp_path / "out")],
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": []}, "give the engines"),
        ({"config": ["--config", "f.yaml", "--vllm", "http://h:1"]}, "give the engines"),
        ({"config": ["--vllm", "http://h:1"]}, "need --model"),
        ({"config": ["--vllm", "ftp://h", "--model", "m"]}, "--vllm ftp://h: expected http"),
        ({"config": ["--ollama", "h:1", "--model", "m"]}, "--ollama h:1: expected http"),
        ({"config": ["--ollama", "http://h:1", "--model", "m", "--api-key-env", "1"]}, "environment"),
        ({"config": ["--ollama", "http://h:1", "--model", "m", "--api-key-env", "UNSET_X"]}, "UNSET_X"),
        ({"config": ["--config", "none.yaml"]}, "none.yaml"),
        ({"prompts": ["--prompts", "none.txt"]}, "none.txt"),
        ({"out": ["--out", __file__]}, "must be a folder"),
        ({"rates": []}, "no load"),
        ({"rates": ["--rates", "0"]}, "above 0"),
        ({"rates": ["--rates", "1,x"]}, "above 0"),
        ({"rates": ["--rates", "1,1"]}, "twice"),
        ({"rates": ["--concurrency", "1.5"]}, "whole number"),
        ({"rates": ["--rates", "1", "--requests", "0"]}, "whole number"),
        ({"rates": ["--rates", "1", "--timeout-s", "nan"]}, "above 0"),
        ({"judge": ["--judge-url", "http://h:1"]}, "need each other"),
        ({"judge": ["--judge-url", "h", "--judge-model", "j"]}, "--judge-url h: expected http"),
        (
            {"judge": ["--judge-url", "http://h:1", "--judge-model", "j", "--judge-key-env", "UNSET_Y"]},
            "UNSET_Y",
        ),
    ],
)
def test_bad_input(
    given: dict[str, list[str]],
    change: dict[str, list[str]],
    reason: str,
    headway: Headway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("UNSET_X", raising=False)
    monkeypatch.delenv("UNSET_Y", raising=False)
    words = [word for part in (given | change).values() for word in part]
    done = headway("collect", *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_a_data_set_is_never_written_over(
    given: dict[str, list[str]], tmp_path: Path, headway: Headway
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dataset.json").write_text("{}", encoding="utf-8")
    assert "already" in headway.refusal("collect", *[word for part in given.values() for word in part])
    assert (tmp_path / "out" / "dataset.json").read_text(encoding="utf-8") == "{}"
