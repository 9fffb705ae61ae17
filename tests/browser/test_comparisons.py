"""Comparisons, from the gateway's directory and from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.chromium import Watched
from tests.browser.test_figures import cells

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_report_of_the_gateway_is_opened_and_saved(page: Watched, reports: Path) -> None:
    report = json.loads((reports / "small" / "report.json").read_text())
    await page.go("#/comparisons")
    await page.page.get_by_role("button", name="small", exact=True).click()
    shown = page.page.locator("#report")
    await expect(shown.get_by_role("heading", name="small")).to_be_focused()
    rows = {row[0]: row for row in await cells(page.page.locator("#cells"))}
    assert list(rows) == report["policies"]
    for cell in report["cells"]:
        if cell["rate_per_s"] == report["rates_per_s"][-1]:
            assert rows[cell["policy"]][1].startswith(f"{cell['measures']['attainment']['mean'] * 100:.1f} %")
    await (
        page.page.get_by_label("Rate", exact=False)
        .and_(page.page.locator("select"))
        .select_option(str(report["rates_per_s"][0]).removesuffix(".0"))
    )
    first = {row[0]: row for row in await cells(page.page.locator("#cells"))}
    assert first["round_robin"][2] != rows["round_robin"][2]  # another rate, another goodput
    capacity = {row[0]: row[1] for row in await cells(page.page.get_by_role("region", name="Capacity"))}
    assert list(capacity) == report["policies"]
    assert await shown.locator("figure polyline").count() >= 3 * len(report["policies"])
    dashes = (
        await shown.locator("figure")
        .first.locator(".legend line")
        .evaluate_all("lines => lines.map(each => each.getAttribute('stroke-dasharray'))")
    )
    assert len(dashes) == len(report["policies"])
    assert len(set(dashes)) == min(7, len(dashes))  # for whoever does not see their colours
    assert "small" in page.page.url  # can be shared
    async with page.page.expect_download() as saving:
        await page.page.get_by_role("button", name="Save small as a page").click()
    saved = await (await saving.value).path()
    assert saved.read_bytes() == (reports / "small" / "report.html").read_bytes()


async def test_a_file_of_ones_own_is_opened_or_refused_in_words(
    page: Watched, reports: Path, tmp_path: Path
) -> None:
    await page.go("#/comparisons")
    choose = page.page.get_by_label("Choose a report.json")
    for text, told in (
        ("not json", "not valid JSON"),
        ("[1]", "not a report of headway compare"),
        ('{"headway_report": 1}', "a report of version 1"),
    ):
        (tmp_path / "other.json").write_text(text)
        await choose.set_input_files(tmp_path / "other.json")
        await expect(page.page.get_by_role("alert")).to_contain_text(told)
    text = (reports / "small" / "report.json").read_text()
    hostile = "<img src=x onerror=alert(1)>"
    (tmp_path / "mine.json").write_text(text.replace("round_robin", hostile))
    await choose.set_input_files(tmp_path / "mine.json")
    await expect(page.page.locator("#cells")).to_contain_text(hostile)
    assert await page.page.locator("main img").count() == 0


async def test_a_page_that_cannot_be_saved_is_told(page: Watched) -> None:
    page.expected = ("404",)
    error = {"error": {"code": "not_found", "message": "There is no such report"}}
    await page.page.route("**/report.html", lambda route: route.fulfill(status=404, json=error))
    await page.go("#/comparisons")
    await page.page.get_by_role("button", name="Save small as a page").click()
    await expect(page.page.get_by_role("alert")).to_have_text("There is no such report")
