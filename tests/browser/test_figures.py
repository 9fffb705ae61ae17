"""Each view shows what the gateway's API and its database say."""

from __future__ import annotations

import asyncio
import re
import statistics

import pytest
from playwright.async_api import Locator, expect

from tests.browser.chromium import Watched
from tests.integration.gateway.live import Live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def cells(table: Locator) -> list[list[str]]:
    """The texts of a table's body."""
    return await table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    )


async def test_the_fleet_is_live(page: Watched, gateway: Live) -> None:
    await page.go("#/fleet")
    slow = page.page.locator("#instances tbody tr", has_text="slow")
    await expect(slow).to_contain_text("healthy")
    await expect(slow).to_contain_text("qwen2.5-7b")
    await expect(slow.locator("td").nth(2)).to_have_text("0")
    async with gateway.stream(model="qwen2.5-7b") as response:
        assert response.status == 200
        await expect(slow.locator("td").nth(2)).to_have_text("1")
        await expect(page.page.locator("dl.tiles > div", has_text="Requests in flight")).to_contain_text("1")
    await expect(slow.locator("td").nth(2)).to_have_text("0")
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    fast = page.page.locator("#instances tbody tr", has_text="fast")
    await expect(fast).to_contain_text("predicted")
    _, told = await gateway.get("/admin/overview/instances?window_s=60")
    assert {each["instance"] for each in told["instances"]} >= {"fast"}
    _, fleet = await gateway.get("/admin/fleet")
    models = page.page.get_by_role("region", name="Models")
    assert [row[0].split("\n")[0] for row in await cells(models)] == [
        each["name"] for each in fleet["models"]
    ]


async def test_the_overview_adds_up(page: Watched, gateway: Live) -> None:
    await asyncio.gather(*(gateway.chat(model="llama-3.1-8b", max_tokens=4 + n) for n in range(20)))
    assert (await gateway.chat(routing={"max_cost_usd": 1e-12}, model="llama-3.1-8b"))[0] == 400
    assert (await gateway.chat(routing={"policy": "nonsense"}))[0] == 400
    await page.go("#/overview?window=3600")
    rows = await gateway.rows()
    totals = page.page.locator("#totals")
    await expect(totals.locator("div", has_text="Requests").first).to_contain_text(str(len(rows)))

    judged = [
        row
        for row in rows
        if row["slo_ttft_s"] and row["outcome"] not in {"client_cancelled", "rejected_invalid"}
    ]
    kept = sum(bool(row["slo_met"]) for row in judged) / len(judged)
    await expect(totals).to_contain_text(f"{kept * 100:.1f} %")
    before = [row for row in rows if row["outcome"].startswith("rejected")]
    assert before
    tile = totals.locator("div", has_text="Ended before decoding")
    await expect(tile).to_contain_text(f"{len(before) / len(rows) * 100:.1f} %")

    outcomes = {row[0]: int(row[1]) for row in await cells(page.page.get_by_role("region", name="Outcomes"))}
    recorded = [row["outcome"] for row in rows]
    assert outcomes["ok"] == recorded.count("ok")
    assert outcomes["out of budget"] == recorded.count("rejected_budget") == 1
    assert outcomes["rejected"] == recorded.count("rejected_invalid")
    assert outcomes["stopped by the client"] == recorded.count("client_cancelled")
    assert sum(outcomes.values()) == len(rows)

    spent = {row[0]: row for row in await cells(page.page.get_by_role("region", name="Spent, by model"))}
    of_model = [row for row in rows if row["model"] == "llama-3.1-8b"]
    assert int(spent["llama-3.1-8b"][1]) == len(of_model)
    usd = sum(row["cost_usd"] or 0 for row in of_model)
    assert float(spent["llama-3.1-8b"][3].removeprefix("$")) == pytest.approx(usd, rel=0.01)

    _, told = await gateway.get("/admin/overview?window_s=3600")
    times = [row["ttft_s"] for row in rows if row["ttft_s"] is not None]
    assert told["latency"]["ttft_s"]["p50"] == pytest.approx(statistics.median(times), rel=0.35)
    assert told["totals"]["output_tokens"] == sum(row["output_tokens"] or 0 for row in rows)

    # Every chart has its figures as a table too, and the arrow keys read them.
    heading = page.page.get_by_role("heading", name="Answered", exact=True)
    chart = page.page.locator("figure", has=heading)
    await chart.get_by_text("Show as a table").click()
    by_time = await cells(chart.get_by_role("region"))
    async with asyncio.timeout(30):
        while sum(int(row[1]) for row in by_time) != outcomes["ok"]:
            await asyncio.sleep(0.2)
            by_time = await cells(chart.get_by_role("region"))
    await chart.locator(".plot").focus()
    await page.page.keyboard.press("End")
    await expect(chart.locator(".readout")).to_contain_text(by_time[-1][1])

    await page.page.get_by_role("button", name="7 d").click()
    await expect(page.page.get_by_role("button", name="7 d")).to_have_attribute("aria-pressed", "true")
    await expect(totals.locator("div", has_text="Requests").first).to_contain_text(str(len(rows)))
    # The last of its buckets of 168 minutes may have begun a moment ago: its requests are shown all the same.
    await expect(chart.locator(".plot")).to_have_attribute("aria-label", re.compile("Last: ok [1-9]"))


async def test_requests_are_listed_filtered_and_explained(page: Watched, gateway: Live) -> None:
    await asyncio.gather(*(gateway.chat(model="llama-3.1-8b", max_tokens=2) for _ in range(55)))
    _, headers, _ = await gateway.chat(routing={"policy": "price"}, model="auto")
    assert (await gateway.chat(routing={"policy": "price", "max_cost_usd": 1e-12}, model="small"))[0] == 400
    rows = await gateway.rows()
    await page.go("#/requests")
    table = page.page.get_by_role("region", name="Requests")
    await expect(table.locator("tbody tr")).to_have_count(50)
    await page.page.get_by_role("button", name="Older requests").click()
    await expect(table.locator("tbody tr")).to_have_count(min(100, len(rows)))
    shown = await table.locator("tbody a").evaluate_all("links => links.map(link => link.title)")
    assert shown == [row["id"] for row in rows[::-1]][:100]

    await page.page.get_by_label("Policy").select_option("price")
    await page.page.get_by_label("Outcome").select_option("ok")
    await expect(table.locator("tbody tr")).to_have_count(1)
    await table.get_by_role("link").click()
    request_id = headers["x-request-id"]
    await expect(page.page.locator("#request-id")).to_have_text(request_id)
    _, told = await gateway.get(f"/admin/requests/{request_id}")
    assert await page.page.locator("#why li").all_inner_texts() == told["why"]
    candidates = await cells(page.page.get_by_role("region", name="Candidates"))
    assert {row[0].split("\n")[0]: row[-1] for row in candidates} == {
        each["instance"]: "chosen" if each["chosen"] else each["reason"] for each in told["candidates"]
    }
    attempts = await cells(page.page.get_by_role("region", name="Attempts"))
    assert [(row[1], row[7]) for row in attempts] == [
        (each["instance"], str(each["output_tokens"])) for each in told["attempts"]
    ]
    compared = {
        row[0]: row for row in await cells(page.page.get_by_role("region", name="Predicted and actual"))
    }
    assert compared["Output tokens"][2] == str(told["output_tokens"])
    when = page.page.locator("dd time")
    assert (await when.get_attribute("title") or "").endswith("UTC")
    await page.page.go_back()
    await expect(table.locator("tbody tr")).to_have_count(1)  # the filters are part of the address


async def test_a_request_that_is_not_there_is_told(page: Watched) -> None:
    page.expected = ("404",)
    await page.go("#/requests/req_none")
    await expect(page.page.locator("main")).to_contain_text("No such request")
