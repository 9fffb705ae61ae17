"""Engines that fail in every way the emulator knows, and what becomes of their requests."""

from __future__ import annotations

import json

import pytest

from tests.contract.backends.fakes import Exchange
from tests.integration.gateway.live import bearer, events, fault, key, live, ollama, vllm
from tests.integration.gateway.staged import DONE, event, staged

MID_STREAM = ["error_mid_stream", "truncate_without_done", "cut_mid_stream"]


def pair(kind: str, **settings):
    """Two replicas of one model."""
    if kind == "vllm":
        return vllm("a", **settings), vllm("b", **settings)
    return ollama("a", "llama-3.1-8b", **settings), ollama("b", "llama-3.1-8b", **settings)


@pytest.mark.parametrize("kind", ["vllm", "ollama"])
async def test_a_failure_before_the_first_token_goes_to_the_next(tmp_path, kind):
    vllms = kind == "vllm"
    async with live(tmp_path, *pair(kind), probes={"interval_s": 5, "eject_after": 100}) as gw:
        for broken in (
            fault("status", status=500),
            fault("status", status=503),
            fault("status", status=401),
            fault("status", status=403),
            fault("status", status=404),
            fault("status", status=429),
            fault("error_before_first_token"),
            # An Ollama has sent nothing by then: the pool takes it for a stale connection and asks again.
            *([fault(each, after_tokens=0) for each in ("truncate_without_done", "cut_mid_stream")] * vllms),
        ):
            for stream in (False, True):
                gw.engines["a"].arm(broken)
                broken.count = 1
                ids, attempts = [], []
                while not attempts or attempts[0]["instance"] != "a":  # until "a" was hit
                    async with gw.stream(
                        model="small", max_tokens=3, stream=stream, routing={"policy": "round_robin"}
                    ) as response:
                        assert response.status == 200, broken
                        text = await response.text()
                    assert "error" not in text
                    if stream:
                        assert text.endswith("data: [DONE]\n\n")
                    ids.append(response.headers["x-request-id"])
                    attempts = await gw.gateway.store.attempts(ids[-1])
                    assert len(ids) < 4
                row = await gw.row(ids[-1])
                assert (row["outcome"], row["instance"], row["attempts"]) == ("ok", "b", 2), broken
                found = [(a["number"], a["instance"], a["ended_how"]) for a in attempts]
                assert found == [(1, "a", "failed"), (2, "b", "ok")]
                assert attempts[0]["error"]
                assert attempts[0]["cost_usd"] == 0
                assert row["cost_usd"] == attempts[1]["cost_usd"] > 0


@pytest.mark.parametrize("kind", ["vllm", "ollama"])
async def test_every_attempt_fails(tmp_path, kind):
    async with live(tmp_path, *pair(kind), probes={"interval_s": 5, "eject_after": 100}) as gw:
        for stream in (False, True):
            for engine in gw.engines.values():
                engine.arm(fault("status", status=500))
            status, headers, answer = await gw.chat(model="small", stream=stream)
            assert (status, answer["error"]["code"]) == (502, "upstream_error")
            row = await gw.row(headers["x-request-id"])
            assert (row["outcome"], row["attempts"], row["decoded"]) == ("backend_error", 2, False)
        for engine in gw.engines.values():
            engine.arm(fault("status", status=500))
        status, answer = await gw.post("/api/generate", {"model": "small", "prompt": "Hi"})
        assert (status, list(answer)) == (502, ["error"])
        assert isinstance(answer["error"], str)


@pytest.mark.parametrize(
    ("lines", "expected"), [(("retry-after: 9", "Retry-After: 4"), "4"), (("retry-after: 9", "x: 1"), None)]
)
async def test_if_every_engine_says_when_to_come_back_the_client_hears_the_soonest(tmp_path, lines, expected):
    def busy(line: str):
        async def script(exchange: Exchange) -> None:
            await exchange.head(429, "application/json", line)
            await exchange.chunk(b'{"error": "too many"}')
            await exchange.end()

        return script

    async with staged(tmp_path, *map(busy, lines)) as (gw, _):
        status, headers, answer = await gw.chat(model="small")
    assert (status, answer["error"]["code"]) == (502, "upstream_error")
    assert headers.get("retry-after") == expected


async def test_no_more_attempts_than_allowed(tmp_path):
    limits = {"max_attempts": 2}
    probes = {"interval_s": 5, "eject_after": 100}
    async with live(tmp_path, *(vllm(name) for name in "abc"), limits=limits, probes=probes) as gw:
        for engine in gw.engines.values():
            engine.arm(fault("status"))
        status, headers, answer = await gw.chat(model="small")
        assert status == 502
        row = await gw.row(headers["x-request-id"])
        assert row["attempts"] == 2
        for attempt in await gw.gateway.store.attempts(row["id"]):
            assert f"{attempt['instance']}: {attempt['error']}" in answer["error"]["message"]


@pytest.mark.parametrize("kind_of_fault", MID_STREAM)
@pytest.mark.parametrize("kind", ["vllm", "ollama"])
async def test_a_failure_after_the_200_is_one_error_event(tmp_path, kind, kind_of_fault):
    async with live(tmp_path, *pair(kind), probes={"interval_s": 5, "eject_after": 100}) as gw:
        for engine in gw.engines.values():
            engine.arm(fault(kind_of_fault, after_tokens=3))
        async with gw.stream(model="small", max_tokens=50) as response:
            assert response.status == 200
            got = events(await response.text())
        assert got[-1]["error"]["code"] == "upstream_error"
        assert sum("error" in event for event in got) == 1
        assert "[DONE]" not in got
        row = await gw.row(response.headers["x-request-id"])
        assert (row["outcome"], row["decoded"], row["attempts"]) == ("backend_error", True, 1)
        assert row["error_code"] == "upstream_error"
        assert row["cost_usd"] > 0  # what was produced is billed
        (attempt,) = await gw.gateway.store.attempts(row["id"])
        assert (attempt["ended_how"], attempt["output_tokens"]) == ("failed", row["output_tokens"])
        other = "b" if row["instance"] == "a" else "a"
        gw.engines[other].faults.clear()
        gw.engines[row["instance"]].arm(fault(kind_of_fault, after_tokens=3))
        gw.engines[other].arm(fault(kind_of_fault, after_tokens=3))
        async with gw.http.post(
            f"{gw.url}/api/generate", json={"model": "small", "prompt": "Hi", "options": {"num_predict": 50}}
        ) as response:
            lines = [json.loads(line) for line in (await response.text()).splitlines()]
        assert list(lines[-1]) == ["error"]
        assert not any(line.get("done") for line in lines)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/responses"])
async def test_calls_of_a_failed_attempt_are_not_mixed_into_the_next(tmp_path, path):
    def calls(name, *further):
        call = {"index": 0, "id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
        delta = {"role": "assistant", "tool_calls": [call, *further]}
        data = event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])

        async def script(exchange: Exchange) -> None:
            await exchange.begin(data)
            await exchange.chunk(event(finish="tool_calls") + DONE)
            await exchange.end()

        return script

    body = {"model": "small", "stream": True}
    body |= {"input": "Hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    async with (
        staged(tmp_path, calls("lost", 3), calls("kept")) as (gw, _),
        gw.http.post(gw.url + path, json=body) as response,
    ):
        text = await response.text()
        assert (await gw.row(response.headers["x-request-id"]))["attempts"] == 2
    assert '"name":"kept"' in text
    assert "lost" not in text


@pytest.mark.parametrize("kind_of_fault", MID_STREAM)
@pytest.mark.parametrize("kind", ["vllm", "ollama"])
async def test_not_streaming_it_is_tried_again_in_full(tmp_path, kind, kind_of_fault):
    async with live(tmp_path, *pair(kind), probes={"interval_s": 5, "eject_after": 100}) as gw:
        _, _, whole = await gw.chat(model="small", max_tokens=30)
        assert whole["usage"]["completion_tokens"] == 30
        hit = None
        for _ in range(4):
            gw.engines["a"].faults.clear()
            gw.engines["a"].arm(fault(kind_of_fault, after_tokens=3))
            status, headers, answer = await gw.chat(
                model="small", max_tokens=30, routing={"policy": "round_robin"}
            )
            assert status == 200
            if answer["headway"]["attempts"] == 2:
                hit = answer
                break
        # The same engine model gives the same text: nothing of the broken attempt is mixed in.
        assert hit["choices"][0]["message"] == whole["choices"][0]["message"]
        assert hit["usage"]["completion_tokens"] == 30
        row = await gw.row(headers["x-request-id"])
        first, second = await gw.gateway.store.attempts(row["id"])
        assert (first["ended_how"], second["ended_how"]) == ("failed", "ok")
        assert first["output_tokens"] >= 1
        assert row["cost_usd"] == pytest.approx(first["cost_usd"] + second["cost_usd"])
        assert first["cost_usd"] > 0
        assert row["output_tokens"] == 30


@pytest.mark.parametrize("kind", ["vllm", "ollama"])
async def test_an_upstream_400_is_passed_once(tmp_path, kind):
    async with live(tmp_path, *pair(kind)) as gw:
        for stream in (False, True):
            for engine in gw.engines.values():
                engine.arm(fault("status", status=400))
            status, headers, answer = await gw.chat(model="small", stream=stream)
            assert (status, answer["error"]["code"]) == (400, "invalid_request")
            assert answer["error"]["message"]
            row = await gw.row(headers["x-request-id"])
            assert (row["outcome"], row["attempts"]) == ("rejected_invalid", 1)
            assert sum(len(engine.faults) for engine in gw.engines.values()) == 1
            for engine in gw.engines.values():
                engine.faults.clear()
        assert all(instance.healthy for instance in gw.instances.values())


async def test_the_engines_own_word_on_its_context(tmp_path):
    models = [{"name": "llama-3.1-8b"}]
    async with live(tmp_path, vllm("a", max_model_len=512), models=models) as gw:
        status, headers, answer = await gw.chat(
            model="llama-3.1-8b", messages=[{"role": "user", "content": "word " * 4000}]
        )
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "word word" not in answer["error"]["message"]
        assert (await gw.row(headers["x-request-id"]))["outcome"] == "rejected_invalid"


async def test_a_200_that_holds_an_error(tmp_path):
    async with live(
        tmp_path, vllm("a", max_num_queued_reqs=1, shed_in_stream=True, speed=1.0), vllm("b")
    ) as gw:
        routing = {"policy": "round_robin"}
        async with (
            gw.stream(model="small", max_tokens=2000, routing=routing) as first,
            gw.stream(model="small", max_tokens=2000, routing=routing) as second,
        ):
            held = {first.headers["x-headway-instance"], second.headers["x-headway-instance"]}
            assert held == {"a", "b"}
            for _ in range(2):
                status, headers, answer = await gw.chat(model="small", routing=routing)
                assert (status, headers["x-headway-instance"]) == (200, "b"), answer


async def test_one_key_takes_no_instance_out_for_another(tmp_path):
    keys = [key("evil", makes_keys=True), key("good")]
    async with live(
        tmp_path,
        *(vllm(name) for name in "abc"),
        auth={"keys": keys},
        environment={"HEADWAY_ADMIN_KEY": "root"},
        probes={"interval_s": 5, "eject_after": 2},
    ) as gw:
        made = (await gw.post("/v1/keys", {"name": "below"}, headers=bearer("evil")))[1]["key"]
        for secret in ["evil", made] * 3:  # what it makes counts as its own
            for engine in gw.engines.values():
                engine.arm(fault("status", status=500))
            assert (await gw.chat(headers=bearer(secret)))[0] == 502
            assert all(instance.healthy for instance in gw.instances.values())
        for _ in range(6):  # fails at one, is answered by another: that one is to blame, says this key
            gw.engines["a"].faults.clear()
            gw.engines["a"].arm(fault("status", status=500))
            await gw.chat(headers=bearer("evil"), routing={"policy": "round_robin"})
        assert (gw.instances["a"].healthy, list(gw.instances["a"].ejected_for)) == (True, ["evil"])
        gw.engines["a"].faults.clear()
        routing = {"policy": "round_robin"}
        answered = {
            (await gw.chat(headers=bearer("good"), routing=routing))[1]["x-headway-instance"]
            for _ in range(6)
        }
        assert answered == {"a", "b", "c"}
        assert (await gw.chat(headers=bearer(made), routing=routing))[0] == 200
        assert list(gw.instances["a"].ejected_for) == ["evil"]
