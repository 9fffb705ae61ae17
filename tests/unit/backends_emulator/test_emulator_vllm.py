from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp
import openai
import pytest
from emulator_client import CHAT, ask, serve
from emulator_profiles import QUICK, SLOW, emulated
from prometheus_client.parser import text_string_to_metric_families

from backends.emulator.instance import EmulatedInstance
from tests.waiting import until

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
NO_TOOL = {"type": "function", "function": {"name": "subtract"}}


def chat(content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}


def wish(tokens: int | dict[str, int]) -> dict[str, Any]:
    return {"vllm_xargs": {"emulate_output_tokens": tokens}}


async def scrape(instance: EmulatedInstance) -> dict[str, Any]:
    page = (await ask(instance, "/metrics")).text
    return {family.name: family for family in text_string_to_metric_families(page)}


def value(families: dict[str, Any], name: str) -> float:
    base = name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")
    family = families.get(name) or families[base]
    return next(sample.value for sample in family.samples if sample.name == name)


async def test_a_chat_stream_has_vllms_shape(vllm: EmulatedInstance) -> None:
    body = chat("x" * 40, stream=True, stream_options={"include_usage": True}, **wish(7))
    answer = await ask(vllm, CHAT, body)
    found = answer.events
    assert (answer.status, found[-1]) == (200, "[DONE]")
    chunks = [json.loads(item) for item in found[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 10, "total_tokens": 17, "completion_tokens": 7}
    assert chunks[-1]["system_fingerprint"] == "headway-emulator"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-2])
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks[:-1])
    assert text == "Emulated text, not a model's"


async def test_several_models_share_one_engine() -> None:
    async with serve(emulated("v", "vllm", {"base": SLOW, "adapter": SLOW})) as (instance,):
        cards = (await ask(instance, "/v1/models")).json["data"]
        assert [card["id"] for card in cards] == ["base", "adapter"]
        bodies = [{**chat(**wish(2)), "model": model} for model in ("base", "adapter", "other")]
        answers = asyncio.gather(*(ask(instance, CHAT, body) for body in bodies))
        await until(lambda: instance.app.state()["running"] == 2)
        found = [(answer.status, answer.json.get("model")) for answer in await answers]
        assert found == [(200, "base"), (200, "adapter"), (404, None)]


async def test_the_answer_is_the_same_streamed_or_not(vllm: EmulatedInstance) -> None:
    async with openai.AsyncOpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "what is a queue?"}]
        create: Any = partial(client.chat.completions.create, model="tiny", messages=messages)
        plain = await create(max_tokens=40)
        stream = await create(max_tokens=40, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        plain.choices[0].message.content
    )
    assert plain.system_fingerprint == "headway-emulator"


async def test_choices_stops_tools_and_json(vllm: EmulatedInstance) -> None:
    async with openai.AsyncOpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        create: Any = partial(client.chat.completions.create, model="tiny", messages=messages)
        two = await create(n=2, max_tokens=12)
        assert [choice.index for choice in two.choices] == [0, 1]
        stream = await create(n=2, max_tokens=12, stream=True, extra_body=wish(12))
        ends = [
            chunk.choices[0] async for chunk in stream if chunk.choices and chunk.choices[0].finish_reason
        ]
        assert sorted(end.index for end in ends) == [0, 1]

        stopped = await create(stop=["model"], extra_body=wish(20))
        assert stopped.choices[0].message.content == "Emulated text, not a "
        assert stopped.choices[0].finish_reason == "stop"
        assert stopped.choices[0].model_extra["stop_reason"] == "model"

        tools: Any = [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "parameters": {
                        "type": "object",
                        "properties": {"a": {"type": "integer"}},
                        "required": ["a"],
                    },
                },
            }
        ]
        called = await create(tools=tools, tool_choice="required")
        (call,) = called.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1})
        assert called.choices[0].finish_reason == "tool_calls"
        pieces = await create(tools=tools, tool_choice="required", stream=True)
        deltas = [chunk.choices[0].delta async for chunk in pieces if chunk.choices]
        calls = [part for delta in deltas for part in delta.tool_calls or []]
        assert calls[0].function.name == "add"
        assert json.loads("".join((part.function and part.function.arguments) or "" for part in calls)) == {
            "a": 1
        }

        formed = await create(response_format={"type": "json_object"}, extra_body=wish(30))
        assert list(json.loads(formed.choices[0].message.content or "")) == ["emulated"]


async def test_completions_echo_batches_and_logprobs(vllm: EmulatedInstance) -> None:
    async with openai.AsyncOpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as client:
        complete: Any = partial(client.completions.create, model="tiny")
        default = await complete(prompt="p", extra_body=wish(100))
        assert default.usage.completion_tokens == 16
        assert default.choices[0].finish_reason == "length"
        batch = await complete(prompt=["aaaa", "bbbbbbbb"], n=2, max_tokens=3)
        assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
        assert batch.usage.prompt_tokens == 3
        ids = await complete(prompt=[1, 2, 3], max_tokens=2, echo=False)
        assert ids.usage.prompt_tokens == 3
        echoed = await complete(prompt="before ", echo=True, max_tokens=1, logprobs=2)
        assert echoed.choices[0].text == "before Emulated"
        assert echoed.choices[0].logprobs.tokens == ["Emulated"]
        assert len((echoed.choices[0].logprobs.top_logprobs or [])[0]) == 2
        stream = await complete(prompt="before ", echo=True, max_tokens=3, stream=True)
        streamed = "".join([chunk.choices[0].text async for chunk in stream])
        assert streamed.startswith("before Emulated")
        scored = await complete(prompt="before ", echo=True, max_tokens=0)
        assert scored.choices[0].text == "before "
        chatted = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            logprobs=True,
            top_logprobs=3,
            extra_body=wish(4),
        )
        content = chatted.choices[0].logprobs and chatted.choices[0].logprobs.content
        assert [len(entry.top_logprobs) for entry in content] == [3, 3, 3, 3]


async def test_lengths_are_bounded(vllm: EmulatedInstance) -> None:
    async def made(**more: Any) -> tuple[int, str]:
        found = (await ask(vllm, CHAT, chat(**more))).json
        return found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]

    assert await made(max_tokens=5, **wish(50)) == (5, "length")
    assert await made(max_completion_tokens=5, max_tokens=9, **wish(50)) == (5, "length")
    assert await made(max_tokens=50, **wish(5)) == (5, "stop")
    assert await made(max_tokens=50, ignore_eos=True, **wish(5)) == (50, "length")
    assert await made(max_tokens=50, min_tokens=8, **wish(5)) == (8, "stop")
    assert await made(**wish({"quick-1b": 6, "x": 9})) == (6, "stop")
    assert await made(**wish({"tiny": 4, "quick-1b": 6})) == (4, "stop")
    assert await made(content="x" * 4 * 4090, **wish(100)) == (6, "length")


async def test_usage_on_every_chunk_when_asked(vllm: EmulatedInstance) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = chat(stream=True, stream_options=options, **wish(4))
    found = (await ask(vllm, CHAT, body)).events
    counts = [json.loads(item)["usage"]["completion_tokens"] for item in found[:-1]]
    assert counts[0] == 0
    assert counts[-1] == counts[-2] == 4
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", chat(max_tokens=0), 400, "max_tokens"),
        ("/v1/chat/completions", chat("x" * 20000), 400, "input_tokens"),
        ("/v1/chat/completions", chat(max_tokens=4096), 400, "input_tokens"),
        ("/v1/chat/completions", chat(stream=True, prompt_logprobs=1), 400, "prompt_logprobs"),
        ("/v1/chat/completions", chat(stream_options={"include_usage": True}), 400, "stream_options"),
        ("/v1/chat/completions", chat(top_logprobs=2), 400, "top_logprobs"),
        ("/v1/chat/completions", chat(response_format={"type": {}}), 400, "response_format"),
        ("/v1/chat/completions", chat(n=0), 400, "n"),
        ("/v1/chat/completions", chat(max_tokens="many"), 400, "max_tokens"),
        ("/v1/chat/completions", chat(tool_choice="required"), 400, "tool_choice"),
        ("/v1/chat/completions", chat(tools=[]), 400, "tools"),
        ("/v1/chat/completions", chat(tools=TOOLS, tool_choice="sometimes"), 400, "tool_choice"),
        ("/v1/chat/completions", chat(tools=TOOLS, tool_choice=NO_TOOL), 400, "tool_choice"),
        ("/v1/chat/completions", chat(stream="yes"), 400, "stream"),
        ("/v1/chat/completions", chat(temperature=3), 400, "temperature"),
        ("/v1/chat/completions", chat(temperature="hot"), 400, "temperature"),
        ("/v1/chat/completions", chat(stop=[1]), 400, "stop"),
        ("/v1/chat/completions", chat(stop=""), 400, "stop"),
        ("/v1/chat/completions", chat(min_tokens=9, max_tokens=3), 400, "min_tokens"),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"content": "x"}]}, 400, "messages"),
        ("/v1/chat/completions", {"model": "tiny", "messages": []}, 400, "messages"),
        ("/v1/completions", {"model": "tiny", "prompt": "x", "logprobs": 99}, 400, "logprobs"),
        ("/v1/embeddings", {"model": "tiny", "input": "x" * 20000}, 400, "input"),
        ("/v1/embeddings", {"model": "tiny", "input": "x", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"model": "tiny", "input": "x", "dimensions": 0}, 400, "dimensions"),
        ("/tokenize", {"model": "tiny"}, 400, "prompt"),
        ("/v1/chat/completions", chat(**wish(0)), 400, "vllm_xargs.emulate_output_tokens"),
        ("/v1/chat/completions", {"model": "tiny"}, 400, "messages"),
        ("/v1/completions", {"model": "tiny"}, 400, "prompt"),
        ("/v1/completions", {"model": "tiny", "prompt": [[]]}, 400, "prompt"),
        ("/v1/chat/completions", {**chat(), "model": "other"}, 404, "model"),
        ("/v1/embeddings", {"model": "tiny", "input": 5}, 400, "input"),
    ],
)
async def test_refusals(
    vllm: EmulatedInstance, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = await ask(vllm, path, body)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (status, status, param)
    assert error["message"]
    assert error["type"] in {"BadRequestError", "Bad Request", "NotFoundError"}


async def test_odd_requests(vllm: EmulatedInstance) -> None:
    for data, kind in (
        (b"{not json", "application/json"),
        (b"[]", "application/json"),
        (b"{}", "text/plain"),
    ):
        answer = await ask(vllm, CHAT, method="POST", data=data, headers={"content-type": kind})
        assert (answer.status, answer.json["error"]["code"]) == (400, 400)
    for path, status, detail in (("/nowhere", 404, "Not Found"), (CHAT, 405, "Method Not Allowed")):
        answer = await ask(vllm, path)
        assert (answer.status, answer.json) == (status, {"detail": detail})
    reader, writer = await asyncio.open_connection("127.0.0.1", vllm.port)
    writer.write(b"NONSENSE\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await writer.wait_closed()


async def test_a_named_tool_and_prompt_logprobs(vllm: EmulatedInstance) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    choice = (await ask(vllm, CHAT, chat(tools=TOOLS, tool_choice=named))).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    body = chat("x" * 12, prompt_logprobs=1, **wish(2))
    logprobs = (await ask(vllm, CHAT, body)).json["prompt_logprobs"]
    assert logprobs[0] is None
    assert [len(entry) for entry in logprobs[1:]] == [1, 1]
    assert next(iter(logprobs[1].values()))["decoded_token"] == "xxxx"


async def raw(port: int, *sent: bytes) -> bytes:
    """What the server says to these bytes, until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for data in sent:
        writer.write(data)
    found = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return found


async def test_limits_of_the_server(vllm: EmulatedInstance) -> None:
    bomb = b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"v" * 1000) for n in range(80))
    assert (await raw(vllm.port, bomb)).startswith(b"HTTP/1.1 431 ")
    body = json.dumps(chat(**wish(1))).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = await raw(vllm.port, head, body)
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_pipelined_requests_are_answered_in_order(vllm: EmulatedInstance) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", vllm.port)
    body = json.dumps(chat(**wish(3))).encode()
    first = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    writer.write(first + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    writer.write(
        b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n" * 2
        + b"GET /ping HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    )
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.count(b"HTTP/1.1 200 OK") == 4
    assert answer.index(b"chat.completion") < answer.index(b'"version"')
    writer.close()
    await writer.wait_closed()


async def test_small_routes(vllm: EmulatedInstance) -> None:
    answer = await ask(vllm, "/v1/models")
    assert answer.headers["Server"] == "headway-emulator"
    (card,) = answer.json["data"]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("tiny", "vllm", 4096)
    for path in ("/health", "/ping"):
        answer = await ask(vllm, path)
        assert (answer.status, answer.text) == (200, "")
    assert "emulator" in (await ask(vllm, "/version")).json["version"]
    found = (await ask(vllm, "/tokenize", {"model": "tiny", "prompt": "x" * 41})).json
    assert (found["count"], len(found["tokens"]), found["max_model_len"]) == (11, 11, 4096)
    body, headers = {"model": "tiny", "prompt": "x"}, {"X-Request-Id": "mine-7"}
    assert (await ask(vllm, "/v1/completions", body, headers=headers)).json["id"] == "cmpl-mine-7"


async def test_embeddings(vllm: EmulatedInstance) -> None:
    async with openai.AsyncOpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as client:
        packed = await client.embeddings.create(model="tiny", input=["a", "b" * 16])  # asks for base64
        plain = await client.embeddings.create(model="tiny", input="a", encoding_format="float", dimensions=8)
    assert [item.index for item in packed.data] == [0, 1]
    assert packed.usage.prompt_tokens == 5
    assert sum(x * x for x in packed.data[1].embedding) == pytest.approx(1.0, abs=1e-5)
    assert len(plain.data[0].embedding) == 8


async def test_the_key_guards_v1_only() -> None:
    async with serve(emulated("v", "vllm", {"tiny": QUICK}, api_key="secret")) as (instance,):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            answer = await ask(instance, "/v1/models", headers=headers)
            assert (answer.status, answer.json) == (401, {"error": "Unauthorized"})
        headers = {"Authorization": "Bearer secret"}
        assert (await ask(instance, "/v1/models", headers=headers)).status == 200
        assert (await ask(instance, "/metrics")).status == 200


async def test_metrics_count_what_happened(vllm: EmulatedInstance) -> None:
    for tokens in (5, 9):
        assert (await ask(vllm, CHAT, chat("x" * 80, max_tokens=20, **wish(tokens)))).status == 200
    families = await scrape(vllm)
    assert len(families) == 39
    assert value(families, "vllm:prompt_tokens_total") == 40
    assert value(families, "vllm:generation_tokens_total") == 14
    assert value(families, "vllm:time_to_first_token_seconds_count") == 2
    assert value(families, "vllm:inter_token_latency_seconds_count") == 12
    assert value(families, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.012)
    assert value(families, "vllm:request_params_max_tokens_sum") == 40
    assert value(families, "vllm:num_requests_running") == 0
    success = families["vllm:request_success"].samples
    assert {sample.labels["finished_reason"]: sample.value for sample in success}["stop"] == 2
    info = families["vllm:cache_config_info"].samples[0].labels
    assert (info["block_size"], info["num_gpu_blocks"]) == ("16", "256")
    running = families["vllm:num_requests_running"].samples[0].labels
    assert running == {"engine": "0", "model_name": "tiny"}


async def test_a_shared_prefix_is_found_in_the_cache(vllm: EmulatedInstance) -> None:
    shared = "s" * 64 * 8
    for tail in ("one", "two"):
        assert (await ask(vllm, CHAT, chat(shared + tail, **wish(2)))).status == 200
    families = await scrape(vllm)
    assert value(families, "vllm:prefix_cache_hits_total") == 128
    assert value(families, "vllm:prefix_cache_queries_total") == 2 * 129


async def test_a_cached_prefix_shortens_the_first_token() -> None:
    # A millisecond a token: 129 tokens take 130 ms of the model's time, the one left after a hit takes 2.
    profile = replace(QUICK, per_token_s=0.001)
    async with serve(emulated("v", "vllm", {"tiny": profile}, speed=100)) as (instance,):
        sums = []
        for tail in ("one", "two"):
            assert (await ask(instance, CHAT, chat("s" * 512 + tail, **wish(1)))).status == 200
            sums.append(value(await scrape(instance), "vllm:time_to_first_token_seconds_sum"))
    assert sums == pytest.approx([0.0013, 0.00132])


async def test_speed_scales_wall_time_in_metrics() -> None:
    async with serve(emulated("v", "vllm", {"tiny": SLOW}, speed=100)) as (instance,):
        assert (await ask(instance, CHAT, chat(**wish(11)))).status == 200
        families = await scrape(instance)
    # 10 gaps of 0.2 s of the model, at a hundred times its speed
    assert value(families, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.02)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_engine(slow_vllm: EmulatedInstance, stream: bool) -> None:
    state = slow_vllm.app.state
    async with aiohttp.ClientSession() as http:
        request = http.post(
            f"{slow_vllm.url}/v1/chat/completions", json=chat(stream=stream, max_tokens=3000, ignore_eos=True)
        )
        task = asyncio.ensure_future(request)
        await until(lambda: state()["running"] == 1)
        if stream:
            answer = await task
            await answer.content.readany()
            answer.close()
        else:
            task.cancel()
        await until(lambda: state()["running"] == 0, 2)
    assert state()["generation_tokens_total"] < 20


async def test_a_slow_reader_gets_everything_merged_and_costs_no_memory() -> None:
    roomy = replace(QUICK, kv_capacity_tokens=1_000_000)
    async with serve(emulated("v", "vllm", {"tiny": roomy})) as (instance,):
        options = {"include_usage": True}
        body = json.dumps(
            chat(stream=True, n=100, max_tokens=300, ignore_eos=True, stream_options=options)
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", instance.port, limit=65536)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        writer.write(
            head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await until(lambda: instance.app.state()["generation_tokens_total"] == 300 * 100, 20)
        (connection,) = instance._server.connections
        assert connection._transport.get_write_buffer_size() < 300_000
        data = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await writer.wait_closed()
    assert b'"completion_tokens":30000' in data
    assert data.count(b'"finish_reason":"length"') == 100
    assert data.count(b"data: ") < 30000
    assert data.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("in_stream", [True, False])
async def test_load_shedding(in_stream: bool) -> None:
    instance = emulated("v", "vllm", {"tiny": SLOW}, max_num_queued_reqs=1, shed_in_stream=in_stream)
    async with serve(instance), aiohttp.ClientSession() as http:
        first = await http.post(instance.url + CHAT, json=chat(stream=True, max_tokens=3000, ignore_eos=True))
        answer = await ask(instance, CHAT, chat(stream=True))
        assert answer.status == (200 if in_stream else 503)
        assert "Retry-After" not in answer.headers
        error, *rest = answer.events if in_stream else [answer.text]
        assert json.loads(error)["error"]["code"] == 503
        assert rest == ["[DONE]"] * in_stream
        families = await scrape(instance)
        assert value(families, "vllm:admission_rejections_total") == 1
        first.close()


async def test_idle_connections_expire() -> None:
    async with serve(emulated("v", "vllm", {"tiny": QUICK}, keep_alive_s=0.05)) as (instance,):
        reader, writer = await asyncio.open_connection("127.0.0.1", instance.port)
        writer.write(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await writer.wait_closed()
