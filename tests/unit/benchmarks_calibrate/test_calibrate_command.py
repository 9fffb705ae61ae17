"""The command as users call it, and the measuring script against a small server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.calibrate import measure
from benchmarks.calibrate.measured import read_file, write_file
from benchmarks.calibrate.profile import read_profiles
from router.core.profile import EngineProfile
from tests.commands import Headway
from tests.unit.benchmarks_calibrate.made import calibrate, level


@pytest.fixture
def measurement(tmp_path: Path) -> Path:
    path = tmp_path / "measurement.jsonl"
    write_file(path, [level(rate, 40) for rate in (1, 4, 8)], {})
    return path


def test_a_report_a_table_and_a_profile(measurement: Path, tmp_path: Path, headway: Headway) -> None:
    out = tmp_path / "out"
    limits = ("--limit", "max_seqs=16", "--limit", "max_batched_tokens=512,1024", "--chunked-prefill", "on")
    report = headway.json("calibrate", measurement, *limits, "--evaluations", "30", "--out", out)
    assert report == orjson.loads((out / "report.json").read_bytes())
    (result,) = report["results"]
    assert (result["fitted_levels"], result["held_out_levels"]) == (["1", "8"], ["4"])
    assert result["held_out"]["e2e"]["count"] == 40
    assert [each["level"] for each in result["levels"]] == ["1", "4", "8"]
    assert result["evaluations"] == 30
    assert sorted(each["max_batched_tokens"] for each in result["limits_tried"]) == [512, 1024]
    shown = (out / "report.txt").read_text()
    assert "held out 4" in shown
    found = yaml.safe_load((out / "profile.yaml").read_text())["engine"]
    assert found["profile"] == result["profile"]
    assert EngineProfile(**found["profile"]).step_s(0, 4, 1000.0) > 0
    assert found["client_overhead_s"] > 0


def test_both_orders_of_prompts_and_decodes_are_tried_unless_one_is_told(
    measurement: Path, headway: Headway
) -> None:
    for words, tried in (
        ((), {True, False}),
        (("--chunked-prefill", "off"), {False}),
        (("--chunked-prefill", "on"), {True}),
    ):
        (result,) = headway.json("calibrate", measurement, *words, "--evaluations", "1")["results"]
        assert {each["chunked_prefill"] for each in result["limits_tried"]} == tried
        assert result["profile"]["chunked_prefill"] in tried


def test_it_may_start_from_a_registered_profile(measurement: Path, headway: Headway) -> None:
    words = ("--start", "llama-3.1-8b@a100-80g", "--evaluations", "1")
    (result,) = headway.json("calibrate", measurement, *words)["results"]
    assert result["profile"]["kv_capacity_tokens"] > 400_000
    assert result["loss"] == result["first_loss"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "nothing to fit"),
        (("--engine", "x"), "--engine: needs --source"),
        (("{file}", "--source", "helix"), "not both"),
        (("--source", "helix", "--data", "{folder}"), "cannot read"),
        (("{file}", "{file}"), "more than one file"),
        (("{file}", "--fit", "9"), "unknown level '9' in --fit or --test (known: 1, 4, 8)"),
        (("{file}", "--start", "no@such"), "--start: unknown profile"),
        (("{file}", "--limit", "slots=3"), "--limit slots=3: expected NAME=N"),
        (("{file}", "--limit", "max_seqs=many"), "'many' is not a whole number"),
        (("{file}", "--limit", "max_seqs=0"), "must be at least 1"),
        (("{file}", "--evaluations", "0"), "--evaluations: must be at least 1"),
        (("{file}", "--evaluations", "1", "--out", "{file}"), "--out {file}: must be a folder"),
    ],
)
def test_wrong_input_is_one_line(
    measurement: Path, words: tuple[str, ...], told: str, headway: Headway
) -> None:
    places = {"file": str(measurement), "folder": str(measurement.parent)}
    line = (word.format(**places) for word in words)
    assert told.format(**places) in headway.refusal("calibrate", *line)


def test_too_little_to_fit_is_refused(tmp_path: Path, headway: Headway) -> None:
    path = tmp_path / "few.jsonl"
    for rates, count, told in (
        ((1,), 40, "there is one load level; measure at two"),
        ((1, 4), 5, "5 requests with an E2E in the fitted levels; give 20 at least"),
    ):
        write_file(path, [level(rate, count) for rate in rates], {})
        assert told in headway.refusal("calibrate", path, "--evaluations", 1)


# --- measuring -----------------------------------------------------------------------------------------


class Server:
    """Streams as many tokens as `max_tokens` says and keeps the bodies it got."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.app = web.Application()
        self.app.router.add_post("/v1/chat/completions", self.answer)
        self.app.router.add_get("/metrics", self.metrics)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        usage = {"prompt_tokens": 33, "completion_tokens": body["max_tokens"]}
        for _ in range(body["max_tokens"]):
            await self.event(response, {"choices": [{"index": 0, "delta": {"content": "x"}}]})
        await self.event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def event(self, response: web.StreamResponse, data: dict[str, Any]) -> None:
        await response.write(b"data: " + orjson.dumps(data) + b"\n\n")

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n")


async def test_measuring_asks_for_exact_lengths_and_writes_the_form(tmp_path: Path) -> None:
    server = Server()
    async with TestServer(server.app) as running:
        words = f"--url {running.make_url('')} --model m --rates 20,40 --seconds 0.4 --output-tokens 6,9"
        assert await asyncio.to_thread(measure.main, [*words.split(), "--out", str(tmp_path)]) == 0
    low, high = read_file(tmp_path / "measurement.jsonl")
    assert (low.name, high.name) == ("20", "40")
    assert len(high.requests) > len(low.requests) > 1
    assert {each.prompt_tokens for each in low.requests} == {33}
    assert all(6 <= (each.output_tokens or 0) <= 9 and each.tpot_s is not None for each in low.requests)
    assert (low.states[0].running, low.states[0].waiting) == (2, 1)
    for body in server.bodies:
        assert body["ignore_eos"] is True
        assert body["min_tokens"] == body["max_tokens"]
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert len(set(prompts)) == len(prompts)


def test_measuring_nothing_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "m", "--rates", "1", "--seconds", "1", "--out", str(tmp_path)]
    assert measure.main(["--url", "ftp://x", *words]) == 2
    assert measure.main(["--url", "http://127.0.0.1:9", *words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [each.partition(":")[0] for each in told] == ["measure", "measure"]
    assert "no answer that can be used" in told[1]
    with pytest.raises(SystemExit):
        measure.main(["--url", "http://127.0.0.1:9", "--model", "m", "--rates", "0", "--out", str(tmp_path)])
    assert "--rates" in capsys.readouterr().err


def test_a_profile_has_the_name_that_the_fleet_knows(measurement: Path, tmp_path: Path) -> None:
    words = ("--evaluations", "5", "--name", "m@h", "--out", str(tmp_path / "out"))
    assert calibrate(str(measurement), *words) == 0
    assert list(read_profiles(tmp_path / "out" / "profile.yaml")) == ["m@h"]
