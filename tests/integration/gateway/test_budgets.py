"""A key's money for a day."""

from __future__ import annotations

from tests.integration.gateway.live import bearer, key, live, vllm


async def test_a_key_whose_budget_is_spent(tmp_path):
    keys = [key("poor", budget_usd_per_day=1e-6), key("rich", budget_usd_per_day=100)]
    async with live(tmp_path, vllm("a"), auth={"keys": keys}) as gw:
        assert (await gw.chat(headers=bearer("poor"), max_tokens=20))[0] == 200  # costs more than is left
        status, headers, answer = await gw.chat(headers=bearer("poor"))
        assert (status, answer["error"]["code"]) == (429, "insufficient_quota")
        assert answer["error"]["type"] == "insufficient_quota"
        assert headers["x-should-retry"] == "false"
        row = await gw.row(headers["x-request-id"])
        assert (row["outcome"], row["error_code"]) == ("rejected_budget", "insufficient_quota")
        assert (await gw.chat(headers=bearer("rich")))[0] == 200
