"""What one key learns of another's prompts from what the gateway predicts: nothing."""

from __future__ import annotations

import pytest

from tests.integration.gateway.live import bearer, key, live, vllm

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
