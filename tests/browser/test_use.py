"""For everyone: by keyboard alone, in the dark, on a narrow screen, read aloud."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from tests.browser.chromium import Watched, watched
from tests.integration.gateway.live import Live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

VIEWS = ("fleet", "overview", "requests", "playground", "comparisons/small", "plans/cluster")

#: What a reader aloud, or a keyboard, would miss; one line each.
UNNAMED = """() => {
  const found = [];
  const text = (id) => document.getElementById(id)?.textContent ?? "";
  const name = (node) => node.getAttribute("aria-label") || text(node.getAttribute("aria-labelledby")) || node.title || node.alt ||
    [...(node.labels ?? [])].map((label) => label.textContent).join("") || node.textContent.trim();
  for (const node of document.querySelectorAll("a, button, input, select, textarea, [tabindex='0'], [role=img], [role=region], [role=group], nav"))
    if (node.checkVisibility() && !name(node)) found.push("no name: " + node.outerHTML.slice(0, 120));
  for (const node of document.querySelectorAll("input, select, textarea"))
    if (!node.labels.length) found.push("no label: " + node.outerHTML.slice(0, 120));
  for (const node of document.querySelectorAll("img")) if (!node.hasAttribute("alt")) found.push("no alt");
  for (const node of document.querySelectorAll("figure .plot")) if (!node.getAttribute("aria-label")) found.push("a chart without words");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push("twice: #" + id);
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((node) => Number(node.tagName[1]));
  levels.forEach((level, at) => { if (at && level > levels[at - 1] + 2) found.push("heading skips to h" + level); });
  for (const node of document.querySelectorAll("th")) if (!node.scope) found.push("th without scope");
  if (!document.documentElement.lang) found.push("no language");
  return found;
}"""

#: Text on its background, least contrast first (WCAG 2 relative luminance); large text would need less.
CONTRASTS = """() => {
  const rgb = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return {c: n.slice(0, 3), a: n[3] ?? 1}; };
  const light = (c) => { const [r, g, b] = c.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (node) => { for (; node; node = node.parentElement) { const {c, a} = rgb(getComputedStyle(node).backgroundColor); if (a === 1) return c; } return [255, 255, 255]; };
  const found = new Map();
  for (const node of document.querySelectorAll("body *")) {
    if (!node.checkVisibility() || node.disabled || ![...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim())) continue;
    if (node.closest("option") || node.tagName === "TITLE") continue;
    const style = getComputedStyle(node);
    const text = light(rgb(node instanceof SVGElement ? style.fill : style.color).c);
    const back = light(behind(node));
    const ratio = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
    const what = node.tagName.toLowerCase() + "." + node.getAttribute("class");
    if (!found.has(what) || found.get(what) > ratio) found.set(what, ratio);
  }
  return [...found].sort((one, other) => one[1] - other[1]);
}"""


async def settled(page: Watched, view: str) -> None:
    """A view with its figures in."""
    await page.go(f"#/{view}")
    await page.page.wait_for_load_state("networkidle") if not view.startswith(("fleet", "overview")) else None
    await expect(page.page.locator("main .card").first).to_be_visible()
    if view == "fleet":
        await expect(page.page.locator("#instances tbody tr")).to_have_count(2)
    if view == "overview":
        await expect(page.page.locator("#totals dd").first).to_be_visible()
    if view.startswith("comparisons"):
        await expect(page.page.locator("#cells tbody tr").first).to_be_visible()
    if view.startswith("plans"):
        await expect(
            page.page.get_by_role("region", name="Ranked plans").locator("tbody tr").first
        ).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_can_be_read_in_every_light(browser: Browser, gateway: Live, theme: str) -> None:
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    assert (await gateway.chat(routing={"policy": "nonsense"}))[0] == 400
    async with watched(browser, gateway.url, color_scheme=theme) as page:
        for view in VIEWS:
            await settled(page, view)
            assert await page.page.evaluate("document.documentElement.dataset.theme") == theme
            assert await page.page.evaluate(UNNAMED) == [], view
            contrasts = await page.page.evaluate(CONTRASTS)
            assert len(contrasts) > 5
            poor = [(what, round(ratio, 2)) for what, ratio in contrasts if ratio < 4.5]
            assert poor == [], view


async def test_the_switch_of_the_theme_wins_and_is_kept(page: Watched) -> None:
    await page.go("#/fleet")
    switch = page.page.get_by_role("button", name="Theme")
    back = "getComputedStyle(document.body).backgroundColor"
    light = await page.page.evaluate(back)
    await switch.click()
    await expect(switch).to_have_text("Theme: light")
    assert await page.page.evaluate(back) == light
    await switch.click()
    await expect(switch).to_have_text("Theme: dark")
    assert await page.page.evaluate(back) != light
    await page.page.reload()
    await expect(switch).to_have_text("Theme: dark")
    assert await page.page.evaluate(back) != light


async def test_no_view_is_wider_than_a_narrow_screen(browser: Browser, gateway: Live) -> None:
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    async with watched(browser, gateway.url, viewport={"width": 360, "height": 720}) as page:
        for view in VIEWS:
            await settled(page, view)
            assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360, view
            current = await page.page.locator("#nav a[aria-current]").bounding_box()
            assert 0 <= current["x"] <= 361 - current["width"], view
            for link in await page.page.locator("#nav a").all():
                assert (await link.bounding_box())["height"] >= 24


async def test_the_fleet_shows_what_cost_holds(page: Watched, gateway: Live) -> None:
    for _ in range(3):
        assert (await gateway.chat(routing={"policy": "cost"}))[0] == 200
    await page.go("#/fleet")
    cells = (
        page.page.get_by_role("region", name="Targets of cost").locator("tbody tr").first.locator("th, td")
    )
    await expect(cells.first).to_have_text("Fleet")
    prices = (await gateway.get("/admin/targets"))[1]["targets"][0]["prices"]
    shown = [f"{prices[each]:.3f}" for each in ("wished_quality", "reachable_quality", "reached_quality")]
    assert (await cells.all_inner_texts())[3:6] == shown


async def test_all_is_reached_by_keyboard_alone(page: Watched, gateway: Live) -> None:
    keyboard = page.page.keyboard
    focused = "document.activeElement.textContent.trim() || document.activeElement.name || document.activeElement.id"
    await page.go("#/fleet")
    await keyboard.press("Tab")
    assert await page.page.evaluate(focused) == "Skip to the content"
    await expect(page.page.locator("#skip")).to_be_in_viewport()
    await keyboard.press("Enter")
    assert await page.page.evaluate("document.activeElement.id") == "main"
    await page.page.reload()
    await page.page.locator("main h1").wait_for()
    met = []
    for _ in range(9):
        await keyboard.press("Tab")
        met.append(await page.page.evaluate(focused))
        outline = await page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", met[-1]
    assert met[:8] == [
        "Skip to the content",
        "Headway",
        "Fleet",
        "Overview",
        "Requests",
        "Playground",
        "Comparisons",
        "Plans",
    ]
    assert met[8].startswith("Theme")
    for _ in range(3):
        await keyboard.press("Shift+Tab")
    assert await page.page.evaluate(focused) == "Playground"
    await keyboard.press("Enter")
    await expect(page.page.locator("main h1")).to_have_text("Playground")
    await expect(page.page.locator("main h1")).to_be_focused()
    await expect(page.page.get_by_label("Model").locator("option")).to_have_count(3)

    order = []
    while not order or order[-1] != "prompt":
        await keyboard.press("Tab")
        order.append(await page.page.evaluate("document.activeElement.name ?? ''"))
        assert len(order) < 20
        if order[-1] == "max_tokens":
            await keyboard.press("Control+A")
            await keyboard.type("6")
    assert order == [
        "model",
        "ttft_ms",
        "tpot_ms",
        "e2e_ms",
        "on_miss",
        "max_cost_usd",
        "min_quality",
        "priority",
        "max_tokens",
        "prompt",
    ]
    await keyboard.press("Control+A")
    await keyboard.type("By keyboard")
    await keyboard.press("Tab")
    assert await page.page.evaluate(focused) == "Send"
    await keyboard.press("Enter")
    link = page.page.get_by_role("link", name="Why, and every attempt")
    await expect(link).to_be_visible()
    await link.focus()
    await keyboard.press("Enter")
    await expect(page.page.locator("#request-id")).to_have_text(re.compile("^req_"))
    row = await gateway.row(await page.page.locator("#request-id").inner_text())
    assert row["max_tokens"] == 6


async def test_a_view_is_printed_whole_and_on_white(browser: Browser, gateway: Live) -> None:
    assert (await gateway.chat(model="llama-3.1-8b"))[0] == 200
    async with watched(
        browser, gateway.url, color_scheme="dark", viewport={"width": 720, "height": 1000}
    ) as page:
        await settled(page, "fleet")
        await page.page.emulate_media(media="print")
        paper = "getComputedStyle(document.querySelector('.card')).backgroundColor"
        assert await page.page.evaluate(paper) == "rgb(255, 255, 255)"
        region = page.page.get_by_role("region", name="Instances")
        assert await region.evaluate("region => getComputedStyle(region).overflowX") == "visible"
        await expect(page.page.get_by_role("button", name="Theme")).to_be_hidden()
