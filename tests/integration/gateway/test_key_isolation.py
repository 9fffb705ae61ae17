"""What one key learns of another's prompts from what the gateway predicts: nothing."""

from __future__ import annotations

import pytest

from router.gateway.records import MAX_JUDGEMENTS
from tests.contract.backends.fakes import Exchange, FakeEngine
from tests.integration.gateway.live import bearer, key, live, vllm
from tests.integration.gateway.staged import DONE, event, usage

PROMPT = [{"role": "user", "content": "The secret plan of the other team, word for word. " * 150}]


async def predicted(gw, secret):
    body = {"model": "small", "messages": PROMPT, "max_tokens": 4}
    status, answer = await gw.post("/v1/routing/predict", body, headers=bearer(secret))
    assert status == 200
    return answer["candidates"][0]["predicted"]["ttft_s_p50"]


@pytest.mark.parametrize("shared", [False, True])
async def test_a_prompt_is_known_to_be_cached_to_those_who_sent_it(tmp_path, shared):
    auth = {"keys": [key("one"), key("two")], "share_prefixes": shared}
    async with live(tmp_path, vllm("a", hardware="l4", speed=5.0), auth=auth) as gw:
        for _ in range(3):
            status, _, _ = await gw.chat(model="small", messages=PROMPT, max_tokens=2, headers=bearer("one"))
            assert status == 200
        own, other = await predicted(gw, "one"), await predicted(gw, "two")
        # What is learned of the engine's speed holds for both; what it has in its cache is told to its key alone.
        assert (other < 1.5 * own) is shared


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_vllm_keeps_each_keys_prompts_apart_with_cache_salt(tmp_path, kind):
    sent = []

    async def play(exchange: Exchange) -> None:
        if not exchange.body:  # a probe, or its metrics
            await exchange.answer(200, b"")
            return
        sent.append(exchange.json)
        await exchange.events(event("a"), event(finish="stop"), usage_event(), DONE)

    def usage_event() -> bytes:
        return b'data: {"object":"chat.completion.chunk","choices":[],"usage":%b}\n\n' % (
            str(usage(2, 1)).replace("'", '"').encode()
        )

    async with FakeEngine(play) as engine:
        instance = {"name": "a", "kind": kind, "url": engine.url, "serves": {"llama-3.1-8b": "x"}}
        auth = {"keys": [key("one"), key("two")], "cache_salt": True}
        async with live(tmp_path, extra_instances=[instance], auth=auth) as gw:
            for secret, more in (("one", {}), ("one", {}), ("two", {}), ("two", {"cache_salt": "mine"})):
                assert (await gw.chat(model="small", headers=bearer(secret), **more))[0] == 200
        salts = [body.get("cache_salt") for body in sent]
        if kind == "vllm":
            assert salts[0] == salts[1] != salts[2]
            assert salts[3] == f"{salts[2]}:mine"
        else:  # whoever that is may refuse what it does not know
            assert salts == [None, None, None, "mine"]


async def test_no_key_fills_the_store_with_judgements(tmp_path):
    async with live(tmp_path, vllm("a"), auth={"keys": [key("one"), key("two")]}) as gw:
        _, headers, _ = await gw.chat(model="small", headers=bearer("one"))
        body = {"request_id": headers["x-request-id"], "quality": 0.5}
        for each in range(MAX_JUDGEMENTS):
            body["quality"] = each % 2
            assert (await gw.post("/v1/feedback", body, headers=bearer("one")))[0] == 200
        # The newest one again is no other rating.
        assert (await gw.post("/v1/feedback", body, headers=bearer("one")))[0] == 200
        body["quality"] = 0.5
        status, answer = await gw.post("/v1/feedback", body, headers=bearer("one"))
        assert (status, answer["error"]["code"]) == (409, "judged_already")
        assert (await gw.post("/v1/feedback", body, headers=bearer("two")))[0] == 404
        assert len(await gw.gateway.store.feedback(body["request_id"])) == MAX_JUDGEMENTS
