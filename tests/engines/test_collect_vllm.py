"""`headway collect` against a real vLLM on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictors.training import dataset
from router import cli
from tests.contract.backends.engine_suite import KEY
from tests.engines.test_vllm import MODEL, Engine, engine  # noqa: F401 (the fixture)

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


def test_a_collection_at_several_loads(
    engine: Engine,  # noqa: F811 (the fixture)
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWAY_TEST_ENGINE_KEY", KEY)
    bounds = [4, 9, 16, 25]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps(
                {"prompt": f"{n}: " + "Say it once more. " * (1 + n % 7 * 10), "max_tokens": bounds[n % 4]}
            )
            + "\n"
            for n in range(36)
        ),
        encoding="utf-8",
    )
    words = ["--vllm", engine.url, "--model", MODEL, "--api-key-env", "HEADWAY_TEST_ENGINE_KEY"]
    words += ["--rates", "2,6", "--concurrency", "4", "--requests", "12", "--report-s", "0.2"]
    out = tmp_path / "data"
    assert cli.main(["collect", *words, "--prompts", str(prompts), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = [(row["level"], row["ok"]) for row in told["levels"]]
    assert found == [("2/s", 12), ("6/s", 12), ("4 at once", 12)]

    data = dataset.read(out)
    assert len(data.prompts) == len(data.answers) == len(data.attempts) == 36
    attempts = {each.prompt: each for each in data.attempts}
    for answer in data.answers:
        attempt = attempts[answer.prompt]
        assert attempt.max_tokens in bounds
        assert 1 <= (answer.output_tokens or 0) <= attempt.max_tokens
        assert answer.capped == (answer.output_tokens == attempt.max_tokens)
        assert attempt.ended_s is not None
        assert attempt.dispatched_s < attempt.first_token_s <= attempt.ended_s
    longest = max(data.prompts, key=lambda each: len(each.text or ""))
    shortest = min(data.prompts, key=lambda each: len(each.text or ""))
    assert attempts[longest.id].prompt_tokens > 3 * attempts[shortest.id].prompt_tokens
    assert {each.run for each in data.states} == {each.id for each in data.runs}
    assert max(each.running or 0 for each in data.states) >= 1
    assert max(each.kv_usage or 0.0 for each in data.states) > 0.0
