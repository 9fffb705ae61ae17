"""One model at kinds of engines that differ in what they can do: a request goes to one that can."""

from __future__ import annotations

import asyncio
import json
from itertools import product

import pytest
import pytest_asyncio

import policies
from tests.integration.gateway.live import MODELS, live, ollama, vllm
from tests.integration.gateway.staged import DONE, INPUT_USD, OUTPUT_USD, event, final, staged

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHARED, ALONE, HELPED = "llama-3.1-8b", "qwen2.5-7b", "gemma-2-9b"
HI = [{"role": "user", "content": "Hello"}]
FREE = {"price": {"input_usd_per_mtok": 0.0, "output_usd_per_mtok": 0.0}, "quality": 0.9}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gw(tmp_path_factory):
    """`llama-3.1-8b` at the vLLM `v` and the Ollama `o`, which asks no money and is taken for the better one;
    `qwen2.5-7b` at `o` alone, and `gemma-2-9b`, which falls back to `llama-3.1-8b`."""
    models = [*MODELS, {**MODELS[1], "name": HELPED, "fallbacks": [SHARED]}]
    serves = {
        SHARED: {"name": f"{SHARED}:latest", **FREE},
        ALONE: f"{ALONE}:latest",
        HELPED: f"{ALONE}:latest",
    }
    engines = vllm("v"), ollama("o", SHARED, ALONE)
    async with live(
        tmp_path_factory.mktemp("mixed"), *engines, models=models, instance={"o": {"serves": serves}}
    ) as made:
        await made.warm("o", ALONE)
        yield made


@pytest.mark.parametrize("policy", list(policies.POLICIES))
async def test_several_answers_by_every_policy(gw, policy):
    for seed in range(3):
        status, headers, answer = await gw.chat(
            model=SHARED, n=2, max_tokens=2, routing={"policy": policy, "seed": seed}
        )
        assert status == 200, answer
        assert (headers["x-headway-instance"], headers["x-headway-policy"]) == ("v", policy)
        assert len(answer["choices"]) == 2
    # The check is worth something: for one answer this policy takes the Ollama too, or sees both.
    status, plain = await gw.post(
        "/v1/routing/predict", {"model": SHARED, "messages": HI, "routing": {"policy": policy}}
    )
    assert status == 200
    assert {each["instance"] for each in plain["candidates"]} == {"v", "o"}
    assert not any("cannot" in (each["reason"] or "") for each in plain["candidates"])


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("completions", {"prompt": ["a", "b"]}, "cannot take several prompts"),
        ("completions", {"prompt": [5, 6, 7]}, "cannot take token ids"),
        (
            "completions",
            {"prompt": "a", "echo": True, "n": 2},
            "cannot give several answers or echo a prompt",
        ),
        ("completions", {"prompt": "a", "best_of": 2}, "cannot give several answers"),
        (
            "chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}],
                    }
                ]
            },
            "cannot fetch an image by its URL",
        ),
    ],
)
async def test_what_only_one_kind_can_do(gw, path, body, reason):
    """It is done there though the other is cheaper, and the record says why."""
    routing = {"policy": "price"}
    asked = {"model": SHARED, "max_tokens": 2, "routing": routing} | body
    status, plain = await gw.post(
        "/v1/routing/predict", {"model": SHARED, "messages": HI, "routing": routing}
    )
    assert (status, plain["instance"]) == (200, "o")
    status, told = await gw.post("/v1/routing/predict", asked)
    assert (status, told["instance"]) == (200, "v")
    assert {each["instance"]: each["reason"] for each in told["candidates"]} == {"v": None, "o": reason}
    status, answer = await gw.post(f"/v1/{path}", asked)
    assert (status, answer["headway"]["instance"], answer["headway"]["attempts"]) == (200, "v", 1), answer
    _, seen = await gw.get(f"/v1/routing/{answer['headway']['request_id']}")
    assert {each["instance"]: each["reason"] for each in seen["candidates"]} == {"v": None, "o": reason}


async def test_if_nobody_can(gw):
    """It is refused before an engine is asked, in a dry run too."""
    status, headers, answer = await gw.chat(model=ALONE, n=2)
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, "invalid_request", "n")
    assert error["message"] == f"No instance that serves {ALONE} can give several answers."
    row = await gw.row(headers["x-request-id"])
    assert (row["outcome"], row["error_code"], row["attempts"]) == ("rejected_invalid", "invalid_request", 0)
    status, told = await gw.post("/v1/routing/predict", {"model": ALONE, "messages": HI, "n": 2})
    assert (status, told["error"]["param"]) == (400, "n")


async def test_a_fallback_that_can(gw):
    status, headers, _ = await gw.chat(model=HELPED, n=2)
    assert (status, headers["x-headway-model"], headers["x-headway-instance"]) == (200, SHARED, "v")
    status, headers, _ = await gw.chat(model=HELPED)
    assert (status, headers["x-headway-model"], headers["x-headway-instance"]) == (200, HELPED, "o")


async def test_one_that_could_but_does_not_live(gw):
    gw.instances["v"].draining = True
    try:
        status, _, answer = await gw.chat(model=SHARED, n=2)
        assert (status, answer["error"]["code"]) == (503, "no_instance")
        assert (await gw.chat(model=SHARED))[0] == 200
    finally:
        gw.instances["v"].draining = False


async def test_best_of_is_paid_for_every_answer_that_is_made(gw):
    """By the cap of the request, and by what is predicted."""
    body = {"model": SHARED, "prompt": "Hello", "max_tokens": 10, "routing": {"policy": "price"}}

    async def predicted(**more):
        status, told = await gw.post("/v1/routing/predict", body | more)
        return status, told

    async def cost_usd(**more):
        status, told = await predicted(**more)
        assert status == 200, told
        return next(each["predicted"]["cost_usd"] for each in told["candidates"] if each["chosen"])

    assert await cost_usd(best_of=3) == pytest.approx(await cost_usd(n=3))
    assert await cost_usd(n=2, best_of=3) == pytest.approx(await cost_usd(n=3))
    _, told = await predicted(routing={"max_cost_usd": 1.0})  # under a cap the vLLM counts the prompt
    # A token for each of two answers.
    cap = {"max_cost_usd": told["prompt_tokens"] * INPUT_USD + 2.5 * OUTPUT_USD}
    assert (await predicted(best_of=2, routing=cap))[0] == 200
    status, told = await predicted(best_of=3, routing=cap)
    assert (status, told["error"]["code"]) == (400, "budget_unattainable")
    status, whole = await gw.post("/v1/completions", body | {"best_of": 3})
    assert (status, len(whole["choices"])) == (200, 1)  # what comes back is `n`
    status, told = await gw.post("/v1/completions", body | {"best_of": 3, "stream": True})
    assert (status, told["error"]["param"]) == (400, "stream")


async def test_a_cut_choice_tells_though_another_ends_last(tmp_path):
    ends = [event("a", index=0), event("b", index=1), event("c", index=1), event(index=1, finish="length")]
    ends.append(event(index=0, finish="stop") + final(9, 3) + DONE)

    def in_parts(*parts):
        async def script(exchange):
            await exchange.head()
            for part in parts:
                await exchange.chunk(part)
                await asyncio.sleep(0.01)  # so that each is read by itself
            await exchange.end()

        return script

    ways = list(product([True, False], repeat=3))
    scripts = [in_parts(b"".join(ends)) if one_read else in_parts(*ends) for one_read, _, _ in ways]
    async with staged(tmp_path, *scripts) as (gw, stage):
        for number, (_, stream, capped) in enumerate(ways):
            cap = {"max_cost_usd": 99 * INPUT_USD + 4.5 * OUTPUT_USD} if capped else {}  # two tokens for each
            body = {"model": "small", "messages": HI, "n": 2, "stream": stream, "routing": cap}
            async with gw.http.post(f"{gw.url}/v1/chat/completions", json=body) as response:
                assert response.status == 200
                text = await response.text()
            assert stage.bodies[number].get("max_tokens") == (2 if capped else None)
            if not stream:
                reasons = [choice["finish_reason"] for choice in json.loads(text)["choices"]]
                assert reasons == ["stop", "length"], number
            row = await gw.row(response.headers["x-request-id"])
            outcome = "budget_exhausted_mid_decode" if capped else "ok"
            assert (row["finish_reason"], row["outcome"]) == ("length", outcome), number


async def test_a_cut_choice_of_an_answer_in_one_piece(tmp_path):
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": "a b"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": "a b"}, "finish_reason": "length"},
    ]
    used = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
    answer = {"id": "x", "object": "chat.completion", "model": "m", "choices": choices, "usage": used}
    data = json.dumps(answer).encode()
    async with staged(tmp_path, lambda exchange: exchange.answer(200, data)) as (gw, _):
        cap = {"max_cost_usd": 99 * INPUT_USD + 4.5 * OUTPUT_USD}
        status, headers, _ = await gw.chat(
            model="small", n=2, use_beam_search=True, routing=cap, max_tokens=50
        )
        row = await gw.row(headers["x-request-id"])
    assert (status, row["finish_reason"]) == (200, "length")
    assert row["outcome"] == "budget_exhausted_mid_decode"
