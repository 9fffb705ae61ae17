"""A key's money, as its user sees it."""

from __future__ import annotations

import pytest

from tests.integration.gateway.live import MODELS, bearer, key, live, vllm

INPUT_USD, OUTPUT_USD = 0.05e-6, 0.25e-6  # a token's price in the dearer model
PROMPT_USD = 99 * INPUT_USD  # the upper bound of "Hello"


@pytest.mark.parametrize(
    ("name", "said"),
    [("budget_usd_per_day", " USD for today (UTC) has "), ("budget_usd", " USD left, which cannot pay")],
)
async def test_a_key_whose_budget_is_spent(tmp_path, name, said):
    """The last answer is cut where the money ends; the next request is told whose budget it was."""
    budget_usd = PROMPT_USD + 30 * OUTPUT_USD
    keys = [key("poor", **{name: budget_usd}), key("rich", **{name: 100})]
    async with live(tmp_path, vllm("a"), models=MODELS[:1], auth={"keys": keys}) as gw:
        chat = {"headers": bearer("poor"), "max_tokens": 500, "ignore_eos": True}
        status, headers, answer = await gw.chat(**chat)
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
        row = await gw.row(headers["x-request-id"])
        assert row["outcome"] == "budget_exhausted_mid_decode"
        spent_usd = row["cost_usd"]
        # The prompt was shorter than its upper bound: what is left of it pays for a second, shorter answer.
        assert PROMPT_USD < spent_usd <= budget_usd
        for _ in range(5):
            status, headers, answer = await gw.chat(**chat)
            row = await gw.row(headers["x-request-id"])
            spent_usd += row["cost_usd"] or 0.0
            if status != 200:
                break
        assert spent_usd <= budget_usd
        assert (status, answer["error"]["code"]) == (429, "insufficient_quota")
        assert answer["error"]["type"] == "insufficient_quota"
        assert said in answer["error"]["message"]
        assert headers["x-should-retry"] == "false"
        assert (row["outcome"], row["error_code"]) == ("rejected_budget", "insufficient_quota")
        assert (await gw.chat(headers=bearer("rich")))[0] == 200


async def test_what_was_spent_is_known_after_a_restart(tmp_path):
    budget_usd = PROMPT_USD + 300 * OUTPUT_USD
    auth = {"keys": [key("k", budget_usd=budget_usd)]}
    chat = {"headers": bearer("k"), "max_tokens": 280, "ignore_eos": True}
    async with live(tmp_path, vllm("a"), models=MODELS[:1], auth=auth) as gw:
        assert (await gw.chat(**chat))[0] == 200
        (row,) = await gw.rows()
    async with live(tmp_path, vllm("a"), models=MODELS[:1], auth=auth) as gw:
        assert gw.gateway.state.spent_usd("k", "total") == pytest.approx(row["cost_usd"])
        _, _, answer = await gw.chat(**chat)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert sum(row["cost_usd"] for row in await gw.rows()) <= budget_usd


async def test_while_no_record_can_be_kept_nothing_is_taken(tmp_path, monkeypatch):
    auth = {"keys": [key("k", requests_per_minute=1)]}
    store = {"url": f"sqlite+aiosqlite:///{tmp_path}/x.db", "when_full": "refuse"}
    async with live(tmp_path, vllm("a"), auth=auth, store=store) as gw:
        with monkeypatch.context() as patched:
            patched.setattr(type(gw.gateway.store), "full", property(lambda _: True))
            status, headers, answer = await gw.chat(headers=bearer("k"))
            assert (status, answer["error"]["code"]) == (503, "server_overloaded")
            assert headers["retry-after"] == "5"
        assert (await gw.chat(headers=bearer("k")))[0] == 200
        assert (await gw.chat(headers=bearer("k")))[0] == 429
