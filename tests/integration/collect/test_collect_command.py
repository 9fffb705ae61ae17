"""`headway collect` as a command: what it writes, prints and returns."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from predictors.training import dataset
from tests.commands import Headway
from tests.integration.collect.conftest import Engines
from tests.servers.judge import judging
from tests.waiting import until

FLEET = """\
models: [{name: llama-3.1-8b, family: llama, context_tokens: 8192}, {name: qwen2.5-7b, family: qwen}]
instances:
  - {name: a, kind: emulated, profile: llama-3.1-8b@a100-80g, speed: SPEED, serves: {llama-3.1-8b: up}}
  - {name: b, kind: emulated, emulates: ollama, profile: qwen2.5-7b-q4@rtx-4090, speed: SPEED, serves: {qwen2.5-7b: "q:7b"}}
  - {name: gone, kind: vllm, url: "http://127.0.0.1:1", serves: {llama-3.1-8b: up}}
"""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"What is {n} times {n}?\n" for n in range(12)), encoding="utf-8")
    return path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.replace("SPEED", "20"), encoding="utf-8")
    return path


def test_a_fleet_file_with_an_instance_that_is_gone(
    fleet: Path, prompts: Path, tmp_path: Path, headway: Headway
) -> None:
    out = tmp_path / "data"
    words = ["--rates", "100", "--concurrency", "2", "--requests", "6", "--max-tokens", "30", "--no-texts"]
    given = ["--config", str(fleet), "--prompts", str(prompts), "--out", str(out), "--json"]
    done = headway("collect", *given, *words)
    assert done.code == 0
    told = json.loads(done.out)
    assert len(done.err.splitlines()) == 1
    assert "gone does not answer" in done.err
    assert told["finished"]
    assert list(told["left_out"]) == ["gone"]
    assert {(row["instance"], row["level"], row["ok"]) for row in told["levels"]} == {
        (name, level, 6) for name in "ab" for level in ("100/s", "2 at once")
    }
    data = dataset.read(out)
    found = {name: told[name] for name in ("prompts", "answers", "runs", "attempts", "states")}
    assert found == {"prompts": 12, "answers": 24, "runs": 4, "attempts": 24, "states": len(data.states)}
    kinds = {run.instance: (run.kind, run.family, run.hardware, run.profile, run.speed) for run in data.runs}
    assert kinds == {
        "a": ("vllm", "llama", "a100-80g", "llama-3.1-8b@a100-80g", 20.0),
        "b": ("ollama", "qwen", "rtx-4090", "qwen2.5-7b-q4@rtx-4090", 20.0),
    }
    assert {each.text for each in data.prompts} == {None}
    assert b"times" not in b"".join(path.read_bytes() for path in out.iterdir())


def test_urls_with_a_key_that_is_never_shown(
    engines: Engines,
    prompts: Path,
    tmp_path: Path,
    headway: Headway,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = "a-key-nobody-may-see"
    caplog.set_level(logging.DEBUG)
    url = engines.vllm("a", api_key=key).url
    arguments = ["collect", "--vllm", url, "--model", "up/llama-3.1-8b", "--prompts", str(prompts)]
    arguments += ["--concurrency", "2", "--requests", "3", "--max-tokens", "5"]
    told = headway.err(*arguments, "--out", tmp_path / "without", code=1)
    assert "does not answer: Error code: 401" in told
    assert "nothing was collected" in told
    assert not (tmp_path / "without" / "dataset.json").exists()
    monkeypatch.setenv("HEADWAY_TEST_KEY", key)
    done = headway(*arguments, "--api-key-env", "HEADWAY_TEST_KEY", "--out", tmp_path / "with")
    assert done.code == 0
    data = dataset.read(tmp_path / "with")
    assert [(run.instance, run.model, run.family) for run in data.runs] == [
        ("vllm-0", "up/llama-3.1-8b", "llama")
    ]
    written = "".join(str(path.read_bytes()) for path in (tmp_path / "with").iterdir())
    assert key not in done.out + done.err + caplog.text + written


def test_all_engines_dead(prompts: Path, tmp_path: Path, headway: Headway) -> None:
    arguments = ["--ollama", "http://127.0.0.1:1", "--model", "m", "--prompts", str(prompts), "--rates", "1"]
    assert headway.json("collect", *arguments, "--out", tmp_path / "data", code=1)["attempts"] == 0
    assert not (tmp_path / "data" / "dataset.json").exists()


def test_ctrl_c_keeps_what_was_collected(
    engines: Engines, fleet: Path, prompts: Path, tmp_path: Path
) -> None:
    engine = engines.vllm("ours")
    ours = f'  - {{name: ours, kind: vllm, url: "{engine.url}", serves: {{llama-3.1-8b: up/llama-3.1-8b}}}}\n'
    fleet.write_text(fleet.read_text(encoding="utf-8") + ours, encoding="utf-8")
    out = tmp_path / "data"
    command = [
        sys.executable,
        "-m",
        "router.cli",
        "collect",
        "--config",
        str(fleet),
        "--prompts",
        str(prompts),
    ]
    command += ["--concurrency", "1", "--requests", "100000", "--max-tokens", "20", "--report-s", "0.05"]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "gone does not answer" in process.stderr.readline()  # the others are being asked
    # One after another, each of at most 20 tokens: before the ninth begins, eight have ended.
    asyncio.run(until(lambda: engine.app.state()["generation_tokens_total"] > 160))
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    data = dataset.read(out)
    assert not json.loads(told)["finished"]
    assert data.about["sources"][0]["finished"] is False
    assert len(data.attempts) == json.loads(told)["attempts"] > 4
    assert {each.ended_how for each in data.attempts} <= {"ok", "cancelled"}


#: Its verdicts, in turn.
VERDICTS = ("<feedback>Good.</feedback>\n<score>4</score>", "I would say four.", None)


def test_a_judge_scores_answers_and_what_it_fails_at_is_counted(
    engines: Engines, prompts: Path, tmp_path: Path, headway: Headway
) -> None:
    arguments = ["collect", "--vllm", engines.vllm("a").url, "--model", "up/llama-3.1-8b"]
    arguments += ["--prompts", str(prompts), "--concurrency", "4", "--requests", "12", "--max-tokens", "20"]
    arguments += ["--out", str(tmp_path / "data")]
    with judging(lambda _, number: VERDICTS[number % 3]) as judge:
        told = headway.json(*arguments, "--judge-url", judge.url, "--judge-model", "flow")
    counts = {"judged": 4, "unreadable": 4, "failed": 4}
    assert told["judge"] == counts
    data = dataset.read(tmp_path / "data")
    scores = [(each.quality, each.quality_kind) for each in data.answers]
    assert sorted(scores, key=str) == [(0.75, "judged")] * 4 + [(None, None)] * 8
    assert data.about["sources"][0]["judge"] == {"model": "flow", **counts}
    (asked,) = [each for each in judge.asked if "What is 3 times 3?" in each["messages"][0]["content"]]
    assert "Emulated text" in asked["messages"][0]["content"]
    assert (asked["model"], asked["temperature"], asked["top_p"]) == ("flow", 0.1, 0.95)
