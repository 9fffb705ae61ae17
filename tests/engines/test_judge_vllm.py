"""`headway judge` against a real vLLM on the CPU, whose random weights give no verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router import cli
from tests.contract.backends.engine_suite import KEY
from tests.contract.backends.fakes import Exchange, FakeEngine
from tests.engines.test_vllm import MODEL, Engine, engine  # noqa: F401 (the fixture)
from tests.integration.gateway.live import bearer, key, live
from tests.integration.gateway.staged import says

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


@pytest.mark.parametrize("real_judge", [False, True], ids=["scripted", "real"])
async def test_a_second_look_at_real_answers(
    engine: Engine,  # noqa: F811 (the fixture)
    real_judge: bool,
    tmp_path: Path,
) -> None:
    """A scripted judge finds the first answer poor, and the second one good. The engine itself gives no verdict."""
    verdicts = [says("<score>1</score>"), says("<score>5</score>")]

    async def play(exchange: Exchange) -> None:
        if exchange.path.startswith("/v1/chat"):
            await verdicts.pop(0)(exchange)
        else:
            await exchange.answer(404 if exchange.path in ("/tokenize", "/metrics") else 200, b"{}")

    prices = {"cheap": (1.0, 0.55), "dear": (40.0, 0.9), "judge": (0.01, 0.5)}
    async with FakeEngine(play) as scripted:
        real = {"kind": "vllm", "url": engine.url, "api_key_env": "ENGINE_KEY"}
        instances = [{"name": name, **real, "serves": {name: MODEL}} for name in prices]
        if not real_judge:
            instances[2] = {"name": "judge", "kind": "vllm", "url": scripted.url, "serves": {"judge": "m"}}
        async with live(
            tmp_path,
            models=[
                {
                    "name": name,
                    "price": {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd},
                    "quality": quality,
                }
                for name, (usd, quality) in prices.items()
            ],
            extra_instances=instances,
            environment={"ENGINE_KEY": KEY},
            auth={"keys": [key("team-a", models=["cheap", "dear"], policy="cost"), key("judge")]},
            second_look={"model": "judge", "key": "judge", "auc": 0.95, "timeout_s": 300},
            scheduling={"explore": 0.0},
            probes={"interval_s": 5, "timeout_s": 20, "eject_after": 100},
        ) as gw:
            answers = [
                await gw.chat(headers=bearer("team-a"), max_tokens=20) for _ in range(1 if real_judge else 2)
            ]
            assert gw.gateway.checked is not None
            checked = {name: count for name, count in gw.gateway.checked.items() if count}
    found = [(code, said["model"], said["headway"]["attempts"]) for code, _, said in answers]
    assert all(said["choices"][0]["message"]["content"] for _, _, said in answers)
    if real_judge:
        assert (found, checked) == ([(200, "cheap", 1)], {"unreadable": 1})
    else:
        assert (found, checked) == ([(200, "dear", 2), (200, "cheap", 1)], {"judged": 2})
        cheap, dear = (usd * 1e-6 for usd, _ in (prices["cheap"], prices["dear"]))
        first, second = (said["usage"]["total_tokens"] for _, _, said in answers)
        assert [said["headway"]["cost_usd"] for _, _, said in answers] == [
            pytest.approx(first * (cheap + dear)),  # one prompt, and 20 tokens of each
            pytest.approx(second * cheap),
        ]
