from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from emulator_client import CHAT, ask, serve
from emulator_profiles import QUICK, SLOW, emulated

from backends.emulator.instance import EmulatedInstance
from tests.waiting import until

VLLM = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20, "ignore_eos": True}
OLLAMA = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "x"}],
    "options": {"emulate_output_tokens": 20},
}


async def arm(instance: EmulatedInstance, **fault: Any) -> None:
    assert (await ask(instance, "/emulator/fault", fault)).status == 200


async def drain(answer: aiohttp.ClientResponse, into: bytearray) -> None:
    """Read to the end."""
    async for data in answer.content.iter_any():
        into += data


async def state_of(port: int, wanted: str) -> str:
    """Try to connect until the port is "open" or "refused", as wanted, at most 5 s; the last state seen."""
    found = ""
    async with asyncio.timeout(5):
        while found != wanted:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                found = "refused"
            else:
                found = "open"
                # Its end says that the server has accepted it, and not only the kernel.
                writer.write(b"GET /health HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
                await asyncio.gather(reader.read(), return_exceptions=True)
                writer.close()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)
            await asyncio.sleep(0.005)
    return found


async def test_a_status_is_given_as_often_as_asked(vllm: EmulatedInstance) -> None:
    await arm(vllm, kind="status", count=2, status=502)
    assert [(await ask(vllm, CHAT, VLLM)).status for _ in range(3)] == [502, 502, 200]


async def test_errors_of_vllm(vllm: EmulatedInstance) -> None:
    await arm(vllm, kind="error_before_first_token")
    answer = await ask(vllm, CHAT, {**VLLM, "stream": True})
    error, done = answer.events
    assert (answer.status, done) == (200, "[DONE]")
    assert json.loads(error)["error"]["code"] == 500
    await arm(vllm, kind="error_mid_stream", after_tokens=3)
    answer = await ask(vllm, CHAT, {**VLLM, "stream": True})
    assert answer.status == 200
    assert answer.text.count('"content":') - 1 <= 3
    assert '"finish_reason":"length"' not in answer.text
    assert answer.events[-2].startswith('{"error":')
    await arm(vllm, kind="error_mid_stream", after_tokens=3)
    assert (await ask(vllm, CHAT, VLLM)).status == 500
    await until(lambda: vllm.app.state()["running"] == 0)


async def test_streams_that_end_too_soon(vllm: EmulatedInstance) -> None:
    await arm(vllm, kind="truncate_without_done", after_tokens=2)
    answer = await ask(vllm, CHAT, {**VLLM, "stream": True})
    assert answer.status == 200
    assert "Emulated" in answer.text
    assert "[DONE]" not in answer.text
    await arm(vllm, kind="cut_mid_stream", after_tokens=2)
    with pytest.raises(aiohttp.ClientError):
        await ask(vllm, CHAT, {**VLLM, "stream": True})
    await arm(vllm, kind="cut_mid_stream", after_tokens=2)
    with pytest.raises(aiohttp.ClientError):
        await ask(vllm, CHAT, VLLM)
    assert (await ask(vllm, CHAT, VLLM)).status == 200


@pytest.mark.parametrize("kind", ["hang_before_first_token", "hang_mid_stream"])
async def test_a_hang_is_silence_on_an_open_connection(vllm: EmulatedInstance, kind: str) -> None:
    async with aiohttp.ClientSession() as http:
        await arm(vllm, kind=kind, after_tokens=2)
        answer = await http.post(f"{vllm.url}/v1/chat/completions", json={**VLLM, "stream": True})
        seen = bytearray()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(drain(answer, seen), 0.4)
        assert (b"Emulated" in seen) is (kind == "hang_mid_stream")
        assert len(vllm.app.live) == 1
        answer.close()
    await until(lambda: not vllm.app.live)


async def test_errors_of_ollama(ollama_server: EmulatedInstance) -> None:
    await arm(ollama_server, kind="error_before_first_token")
    answer = await ask(ollama_server, "/api/chat", OLLAMA)
    assert (answer.status, list(answer.json)) == (500, ["error"])
    await arm(ollama_server, kind="error_mid_stream", after_tokens=2)
    answer = await ask(ollama_server, "/api/chat", OLLAMA)
    assert (answer.status, list(answer.lines[-1])) == (200, ["error"])
    assert not any(line.get("done") for line in answer.lines)
    await arm(ollama_server, kind="error_mid_stream", after_tokens=2)
    answer = await ask(ollama_server, CHAT, {**OLLAMA, "stream": True})
    last = json.loads(answer.events[-1])
    assert (answer.status, last["choices"][0]["delta"]) == (200, {"content": ""})
    assert "[DONE]" not in answer.text


async def test_refused_connections_come_back(vllm: EmulatedInstance) -> None:
    port = vllm.port
    await arm(vllm, kind="refuse_connections", for_s=2.0)
    await asyncio.sleep(0.05)  # asyncio leaves a connection open that it accepts while its server closes
    assert await state_of(port, "refused") == "refused"
    assert await state_of(port, "open") == "open"


async def test_a_kill_resets_streams_and_a_start_revives() -> None:
    instance = emulated("v", "vllm", {"tiny": SLOW})
    async with serve(instance), aiohttp.ClientSession() as http:
        url, port = f"{instance.url}/v1/chat/completions", instance.port
        answer = await http.post(url, json={**VLLM, "stream": True})
        await answer.content.readany()
        await arm(instance, kind="kill")
        with pytest.raises(aiohttp.ClientError):
            await drain(answer, bytearray())
        answer.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(f"{instance.url}/health")
        await instance.start()
        assert instance.port == port
        assert instance.app.state()["running"] == 0
        assert (await ask(instance, "/health")).status == 200


async def test_health_and_the_fault_route(vllm: EmulatedInstance) -> None:
    await arm(vllm, kind="unhealthy", for_s=60)
    assert (await ask(vllm, "/health")).status == 503
    await arm(vllm, kind="status", count=None)
    fault = "/emulator/fault"
    assert [item["kind"] for item in (await ask(vllm, fault)).json["armed"]] == ["status"]
    assert (await ask(vllm, fault, method="DELETE")).json["armed"] == []
    assert (await ask(vllm, "/health")).status == 200
    for bad in ({"kind": "nope"}, {"kind": "status", "count": 0}, {"kind": "status", "colour": 1}, []):
        answer = await ask(vllm, fault, bad)
        assert answer.status == 400
        assert answer.json["error"][:1].isalpha()
    assert (await ask(vllm, "/emulator/state")).json["kind"] == "vllm"


@pytest.mark.parametrize(
    ("on_stop", "end"), [("error", b"[DONE]"), ("finish", b"[DONE]"), ("hang", None), ("cut", None)]
)
async def test_what_streams_get_when_an_instance_stops(on_stop: Any, end: bytes | None) -> None:
    profile = QUICK if on_stop == "finish" else SLOW
    instance = emulated("v", "vllm", {"tiny": profile}, on_stop=on_stop)
    async with aiohttp.ClientSession() as http:
        await instance.start()
        tokens = 100 if on_stop == "finish" else 2000
        answer = await http.post(
            f"{instance.url}/v1/chat/completions", json={**VLLM, "max_tokens": tokens, "stream": True}
        )
        first = await answer.content.readany()
        stopping = asyncio.create_task(instance.stop(0.2 if on_stop == "hang" else 5.0))
        if end is None:
            with pytest.raises(aiohttp.ClientError):
                await answer.content.read()
        else:
            text = first + await answer.content.read()
            assert end in text
            assert (b'"error"' in text) is (on_stop == "error")
            assert (b'"finish_reason":"length"' in text) is (on_stop == "finish")
        await stopping
        answer.close()
