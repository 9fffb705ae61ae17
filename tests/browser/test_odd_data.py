"""Data, names and addresses that nobody expects, and views that are refreshed under the reader."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Route, expect

from tests.browser.chromium import Watched
from tests.integration.gateway.live import Live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("number(1e-13)", "0"),
        ("number(2e-9)", "0.0000000020"),
        ("number(-0.5)", "-0.50"),
        ("seconds(0.0001)", "0.1 ms"),
        ("seconds(150)", "2.5 min"),
        ("seconds(3000)", "50.0 min"),
        ("usd(1e-9)", "$0.000000001"),
        ("usd(1e6)", "$1,000,000"),
        ("seconds(null)", "—"),
        ("counted(1, 'token')", "1 token"),
        ("counted(1200, 'token')", "1,200 tokens"),
    ],
)
async def test_numbers_of_every_size_can_be_read(page: Watched, call: str, text: str) -> None:
    await page.go("#/playground")
    assert await page.page.evaluate(f"import('/ui/format.js').then((form) => form.{call})") == text


@pytest.mark.parametrize(
    ("place", "title"),
    [
        ("#/requests/100%", "No such request"),
        ("#/constructor", "Fleet"),
        ("#/comparisons/100%", "Comparisons"),
    ],
)
async def test_an_odd_address_opens_a_view(page: Watched, place: str, title: str) -> None:
    page.expected = ("404",)
    await page.go(place)
    await expect(page.page.locator("main h1")).to_have_text(title)


async def test_back_leads_to_the_address_without_a_view(page: Watched) -> None:
    await page.go("")
    await page.page.get_by_role("link", name="Playground").click()
    await expect(page.page.locator("main h1")).to_have_text("Playground")
    await page.page.go_back()
    await expect(page.page.locator("main h1")).to_have_text("Fleet")


async def test_a_filter_of_an_instance_that_left_is_kept(page: Watched, gateway: Live) -> None:
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    await page.go("#/requests?instance=gone")
    await expect(page.page.locator("select[name=instance]")).to_have_value("gone")
    await expect(page.page.locator("#requests")).to_contain_text("No request matches.")


async def test_a_view_that_is_left_while_it_loads_leaves_no_error(page: Watched) -> None:
    await page.go("#/requests")
    await expect(page.page.locator("#requests > *")).to_have_count(1)

    async def never(_: Route) -> None:
        pass

    await page.page.route("**/admin/requests**", never)
    async with page.page.expect_request("**/admin/requests**"):
        await page.page.get_by_role("button", name="Refresh").click()
    await page.page.get_by_role("link", name="Playground").click()
    await expect(page.page.get_by_label("Model").locator("option")).to_have_count(3)


async def test_the_models_count_an_instance_that_is_added(page: Watched, gateway: Live) -> None:
    await page.go("#/fleet")
    instances = page.page.get_by_role("region", name="Models").locator("tbody tr").first.locator("td").first
    await expect(instances).to_have_text("1")
    added = {"name": "added", "kind": "vllm", "url": "http://127.0.0.1:9", "serves": {"llama-3.1-8b": "a"}}
    assert (await gateway.post("/admin/instances", added))[0] == 201
    try:
        await expect(instances).to_have_text("2")
    finally:
        async with gateway.http.delete(f"{gateway.url}/admin/instances/added") as response:
            assert response.status == 200
    await expect(instances).to_have_text("1")


async def test_a_refresh_leaves_the_reader_where_he_is(page: Watched, gateway: Live) -> None:
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    await page.go("#/overview?window=604800")
    figure = page.page.locator("figure", has=page.page.get_by_role("heading", name="Answered", exact=True))
    await figure.get_by_text("Show as a table").click()
    region = figure.get_by_role("region")
    await region.evaluate("region => { region.focus(); region.scrollTop = 200; }")
    row = await region.locator("tbody tr").first.element_handle()
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    await row.wait_for_element_state("hidden")  # the figures are new
    await expect(region).to_be_focused()
    assert await region.evaluate("region => region.scrollTop") == 200


async def test_what_does_not_change_stays_selected(page: Watched) -> None:
    changes = {"added": [], "removed": [], "draining": [], "trouble": "instance a: no such model"}

    async def changed(route: Route) -> None:
        await route.fulfill(json=await (await route.fetch()).json() | {"changes": changes})

    await page.page.route("**/admin/fleet", changed)
    await page.go("#/fleet")
    await page.page.get_by_text("no such model").select_text()
    for _ in range(3):
        async with page.page.expect_response("**/admin/fleet"):
            pass
    assert await page.page.evaluate("getSelection().toString()") == changes["trouble"]


async def test_back_from_a_request_leads_to_where_it_was_in_the_list(page: Watched, gateway: Live) -> None:
    for _ in range(4):
        await asyncio.gather(*(gateway.chat(model="llama-3.1-8b", max_tokens=2) for _ in range(28)))
    await page.go("#/requests")
    rows = page.page.get_by_role("region", name="Requests").locator("tbody tr")
    await expect(rows).to_have_count(50)
    await page.page.get_by_role("button", name="Older requests").click()
    await expect(rows).to_have_count(100)
    link = rows.nth(80).get_by_role("link")
    await link.scroll_into_view_if_needed()
    top = await page.page.evaluate("scrollY")
    assert top > 500
    await link.click()
    await page.page.locator("#request-id").wait_for()
    await page.page.go_back()
    await expect(rows).to_have_count(100)
    await page.page.wait_for_function(f"scrollY === {top}")
    await page.page.get_by_role("link", name="Fleet").click()
    await page.page.get_by_role("link", name="Requests").click()
    await expect(rows).to_have_count(50)


async def test_the_last_two_minutes_are_two_minutes(page: Watched) -> None:
    """Also when nobody saw the page for a while."""
    await page.page.clock.install()
    await page.go("#/fleet")
    line = page.page.locator("#instances polyline").first
    await expect(line).to_have_attribute("points", re.compile(r"(\S+ ){3}"))
    await page.page.clock.fast_forward(300_000)
    await expect(line).not_to_have_attribute("points", re.compile(r"(\S+ ){3}"))


async def test_figures_of_another_window_are_named_as_such(page: Watched) -> None:
    await page.go("#/overview")
    await expect(page.page.locator("#totals dd").first).to_be_visible()

    async def never(_: Route) -> None:
        pass

    await page.page.route("**/admin/overview?window_s=604800**", never)
    await page.page.get_by_role("button", name="7 d").click()
    await expect(page.page.locator("main [role=status]")).to_have_text("Looking …")


async def test_an_overview_that_is_being_made_does_not_say_that_there_is_nothing(page: Watched) -> None:
    async def never(_: Route) -> None:
        pass

    await page.page.route("**/admin/overview?**", never)
    async with page.page.expect_request("**/admin/overview?**"):
        await page.go("#/overview")
    await expect(page.page.locator("main [role=status]")).to_have_text("Looking …")
    await expect(page.page.get_by_role("heading", name="Goodput")).to_be_hidden()


async def test_long_names_leave_room_for_the_figures(page: Watched, gateway: Live) -> None:
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    name = "vllm-meta-llama-3.1-8b-instruct-" + "0123456789" * 6

    async def renamed(route: Route) -> None:
        text = await (await route.fetch()).text()
        more = ", ".join(f'"org/model-{number}": "m"' for number in range(30))
        text = text.replace('"fast"', f'"{name}"').replace('"serves":{', f'"serves":{{{more}, ')
        await route.fulfill(body=text, content_type="application/json")

    await page.page.route("**/admin/fleet", renamed)
    await page.go("#/fleet")
    table = page.page.locator("#instances")
    await expect(table).to_contain_text(name)
    assert await table.evaluate("table => table.scrollWidth <= table.clientWidth")
    await page.page.route("**/admin/requests/*", renamed)
    await page.go(f"#/requests/{(await gateway.rows())[-1]['id']}")
    text = page.page.locator("figure .over-text").first
    await expect(text).to_contain_text("1 · vllm")
    assert await text.evaluate("text => text.getBBox().x") >= 0


async def test_a_name_without_spaces_does_not_widen_the_page(page: Watched) -> None:
    page.expected = ("503",)
    name = "n" * 200
    report = {"name": name, "modified_at": 0, "bytes": 1, "files": ["report.json"]}
    await page.page.set_viewport_size({"width": 360, "height": 720})
    listed = {"configured": True, "reports": [report]}
    await page.page.route("**/admin/reports", lambda route: route.fulfill(json=listed))
    await page.go("#/comparisons")
    await expect(page.page.get_by_role("button", name=name)).to_be_visible()
    assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360
    error = {"error": {"code": "no_instance", "message": name}}
    await page.page.route("**/v1/routing/predict", lambda route: route.fulfill(status=503, json=error))
    await page.go("#/playground")
    await page.page.get_by_role("button", name="Predict").click()
    await expect(page.page.get_by_label("Column A").get_by_role("alert")).to_contain_text(name)
    assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_the_band_of_a_chart_has_the_gaps_of_its_line(page: Watched) -> None:
    await page.go("#/playground")
    draw = """async () => {
      const { lines } = await import("/ui/timechart.js");
      const chart = lines("", { form: String, series: [{ name: "", k: 1, of: ({ at }) => at }], band: [({ at }) => at, ({ at }) => at] });
      document.querySelector("main").append(chart.node);
      chart.update([1, 2, null, null, 3, 4].map((at, start) => ({ at, start, seconds: 1 })));
      await new Promise((drawn) => setTimeout(drawn, 100));
      return [...chart.node.querySelectorAll("polygon")].map((each) => each.points.length);
    }"""
    assert await page.page.evaluate(draw) == [4, 4]


async def test_received_within_goes_by_the_gateway_s_clock(page: Watched, gateway: Live) -> None:
    """Not by the browser's, which may be wrong."""
    assert (await gateway.chat(model="small"))[0] == 200
    await page.page.clock.set_fixed_time(datetime.now(UTC) + timedelta(days=3))
    async with page.page.expect_request(lambda request: "since=" in request.url) as asked:
        await page.go("#/requests?since=900")
    since = float(parse_qs(urlsplit((await asked.value).url).query)["since"][0])
    assert abs(time.time() - 900 - since) < 120
    await expect(page.page.get_by_role("region", name="Requests").locator("tbody tr").first).to_be_visible()
