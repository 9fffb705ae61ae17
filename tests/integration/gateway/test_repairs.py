"""Faults of the server, the relay and fleet changes that were found from outside."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from router.gateway.http import server as http_server
from tests.integration.gateway.live import SPEED, live, post, vllm
from tests.integration.gateway.staged import event, hangs, staged

STREAMED = {"model": "small", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize("stray", [b"\r\n", b"GET /healthz HT"])
async def test_what_follows_a_request_does_not_break_into_its_answer(tmp_path, monkeypatch, stray):
    """A stray line end, or half of a pipelined request, while a long stream is under way."""
    monkeypatch.setattr(http_server, "SLOW_AFTER_S", 0.2)
    async with live(tmp_path, vllm("a", speed=1.0)) as gw:
        body = json.dumps(STREAMED | {"max_tokens": 150, "ignore_eos": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
        try:
            writer.write(post(body))
            got = await reader.readline()
            writer.write(stray)
            async with asyncio.timeout(10):
                while b"[DONE]" not in got and (data := await reader.read(65536)):
                    got += data
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        assert b"HTTP/1.1 408" not in got
        assert b"data: [DONE]\n\n" in got


async def test_a_refused_reload_changes_nothing_at_all(tmp_path):
    async with live(tmp_path, vllm("a"), instance={"a": {"max_concurrency": 3}}) as gw:
        gw.fleet["instances"][0]["max_concurrency"] = 1
        gw.fleet["instances"].append(
            {
                "name": "z",
                "kind": "vllm",
                "url": "http://127.0.0.1:9",
                "serves": {"qwen2.5-7b": "x"},
                "api_key_env": "NO_SUCH_VARIABLE",
            }
        )
        status, answer = await gw.post("/admin/reload", {})
        assert status == 422
        assert "NO_SUCH_VARIABLE" in answer["error"]["message"]
        assert set(gw.instances) == {"a"}
        assert gw.instances["a"].max_concurrency == 3


@pytest.mark.real_time  # engines are processes of their own
async def test_instances_added_at_the_same_time_all_stay(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:

        def emulated(name):
            return {
                "name": name,
                "kind": "emulated",
                "profile": "qwen2.5-7b@a100-80g",
                "speed": SPEED,
                "serves": {"qwen2.5-7b": "qwen"},
            }

        got = await asyncio.gather(*(gw.post("/admin/instances", emulated(name)) for name in "xyy"))
        assert sorted(status for status, _ in got) == [201, 201, 409]
        assert set(gw.instances) == set("axy")
        status, headers, _ = await gw.chat(model="qwen2.5-7b")
        assert status == 200
        assert headers["x-headway-instance"] in "xy"


async def test_a_client_that_sends_forty_megabytes_reads_its_413(tmp_path):
    async with (
        live(tmp_path, vllm("a")) as gw,
        openai.AsyncOpenAI(base_url=f"{gw.url}/v1", api_key="none", max_retries=0) as api,
    ):
        huge = [{"role": "user", "content": "x" * (40 << 20)}]
        with pytest.raises(openai.APIStatusError) as large:
            await api.chat.completions.create(model="small", messages=huge)
        assert (large.value.status_code, large.value.code) == (413, "request_too_large")


@pytest.mark.parametrize("queued", [False, True])
async def test_who_is_served_too_long_for_a_shutdown_is_told(tmp_path, caplog, queued):
    """With an error event, or a 503 where nothing was sent yet; and it is no fault to be logged."""

    async with staged(tmp_path, hangs("role") if queued else lambda exchange: exchange.hang(event("a"))) as (
        gw,
        stage,
    ):
        asking = asyncio.create_task(gw.http.post(f"{gw.url}/v1/chat/completions", json=STREAMED))
        await gw.until(lambda: stage.bodies)
        gw.server.should_exit = True
        response = await asking
        text = await response.text()
        assert response.status == (503 if queued else 200)
        assert ('"no_instance"' in text, "[DONE]" in text) == (True, False)
        (row,) = await gw.rows()
        assert (row["outcome"], row["error_code"]) == ("backend_error", "shutdown")
    assert [each for each in caplog.records if each.exc_info] == []
