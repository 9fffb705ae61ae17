"""Plans, from the gateway's directory and from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser.chromium import Watched
from tests.browser.test_figures import cells

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

#: The natural width of the picture, once it is loaded.
WIDTH = "async (image) => { await image.decode(); return image.naturalWidth; }"


async def test_a_plan_of_the_gateway_is_drawn_and_ranked(page: Watched, reports: Path) -> None:
    plan = json.loads((reports / "cluster" / "plan.json").read_text())
    await page.go("#/plans")
    assert await page.page.get_by_role("button", name="small", exact=True).count() == 0  # a comparison
    await page.page.get_by_role("button", name="cluster", exact=True).click()
    shown = page.page.locator("#report")
    await expect(shown.get_by_role("heading", name="cluster", exact=True)).to_be_focused()
    drawing = shown.get_by_role("img", name="llama-3.2-3b")
    assert await drawing.evaluate(WIDTH) >= 600
    rows = await cells(page.page.get_by_role("region", name="Ranked plans"))
    assert len(rows) == len(plan["plans"])
    for row, each in zip(rows, plan["plans"], strict=True):
        assert row[1].startswith(f"{each['attainment'] * 100:.1f} %")
        assert row[4] == f"${each['usd_per_hour']:.2f}"
    assert "plans/cluster" in page.page.url  # can be shared
    async with page.page.expect_download() as saving:
        await page.page.get_by_role("button", name="Save the drawing of cluster").click()
    saved = await (await saving.value).path()
    assert saved.read_bytes() == (reports / "cluster" / "plan.svg").read_bytes()


async def test_a_plan_of_ones_own_has_no_drawing_and_no_html(
    page: Watched, reports: Path, tmp_path: Path
) -> None:
    await page.go("#/plans")
    choose = page.page.get_by_label("Choose a plan.json")
    await choose.set_input_files(reports / "small" / "report.json")
    await expect(page.page.get_by_role("alert")).to_contain_text("not a report of headway plan")
    hostile = "<img src=x onerror=alert(1)>"
    text = (reports / "cluster" / "plan.json").read_text().replace("llama-3.2-1b", hostile)
    (tmp_path / "mine.json").write_text(text)
    await choose.set_input_files(tmp_path / "mine.json")
    await expect(page.page.get_by_role("region", name="Ranked plans")).to_contain_text(hostile)
    assert await page.page.locator("main img").count() == 0


async def test_a_drawing_cannot_run_a_script(page: Watched, reports: Path) -> None:
    folder = reports / "hostile"
    folder.mkdir()
    try:
        (folder / "plan.json").write_bytes((reports / "cluster" / "plan.json").read_bytes())
        (folder / "plan.svg").write_text(
            "<svg xmlns='http://www.w3.org/2000/svg' width='700' height='10' onload='parent.ran = 1'>"
            "<script>window.ran = 1; top.ran = 1</script></svg>"
        )
        await page.go("#/plans/hostile")
        assert await page.page.locator("#report img").evaluate(WIDTH) == 700
        assert await page.page.evaluate("window.ran === undefined")
    finally:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
