"""Keys: typed once, kept in the tab, told when wrong; and a gateway that does not answer."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, Request, expect

from tests.browser.chromium import Watched, watched
from tests.browser.conftest import ADMIN_KEY
from tests.integration.gateway.live import Live, bearer
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_the_admin_key_opens_the_page_and_a_wrong_one_is_told(browser: Browser, locked: Live) -> None:
    async with asyncio.timeout(60), watched(browser, locked.url) as page:
        page.expected = ("401",)
        await page.go("#/overview")
        key = page.page.get_by_label("Admin key")
        await expect(key).to_be_focused()
        await key.fill("not-the-key")
        await page.page.keyboard.press("Enter")
        await expect(page.page.get_by_role("alert")).to_have_text("That is not the admin key.")
        await key.fill(ADMIN_KEY)
        await page.page.keyboard.press("Enter")
        await expect(page.page.locator("main h1")).to_have_text("Overview")
        await page.page.reload()
        await expect(page.page.locator("main h1")).to_have_text("Overview")
        kept = await page.page.evaluate(
            "[Object.values(localStorage).join(), Object.values(sessionStorage).join()]"
        )
        assert kept == ["", ADMIN_KEY]
        assert ADMIN_KEY not in page.page.url
        await page.page.get_by_role("button", name="Forget keys").click()
        await expect(page.page.get_by_label("Admin key")).to_be_visible()
        assert await page.page.evaluate("sessionStorage.length") == 0


async def test_the_playground_goes_by_a_client_key(browser: Browser, locked: Live) -> None:
    async with asyncio.timeout(60), watched(browser, locked.url) as page:
        page.expected = ("401",)
        await page.go("#/playground")
        await expect(page.page.locator("main")).to_contain_text("This gateway needs a client key.")
        key = page.page.get_by_label("Client key")
        await key.fill("wrong")
        await page.page.keyboard.press("Tab")
        await expect(page.page.locator("main")).to_contain_text("That is not a client key of this gateway.")
        await key.fill("team-a")
        await page.page.keyboard.press("Tab")
        await expect(page.page.get_by_label("Model").locator("option")).to_have_count(3)
        await page.page.get_by_label("Maximum output tokens").fill("5")
        await page.page.get_by_role("button", name="Send").click()
        link = page.page.get_by_role("link", name="Why, and every attempt")
        await expect(link).to_be_visible()
        request_id = (await link.get_attribute("href") or "").rpartition("/")[2]
        status, row = await locked.get(f"/v1/routing/{request_id}", headers=bearer("team-a"))
        assert (status, row["key_name"], row["output_tokens"]) == (200, "team-a", 5)


async def test_a_gateway_that_is_gone_is_told_and_tried_again(page: Watched) -> None:
    page.expected = ("ERR_INTERNET_DISCONNECTED",)
    await page.go("#/fleet")
    await expect(page.page.locator("#instances")).to_contain_text("healthy")
    notice = page.page.get_by_role("status").first
    assert await notice.evaluate("notice => notice.checkVisibility()")  # else it would not be read aloud
    await page.page.context.set_offline(True)
    await expect(notice).to_have_text("The gateway does not answer; trying again.")
    await expect(notice).to_be_visible()
    await page.page.context.set_offline(False)
    await expect(notice).to_be_hidden()
    await expect(page.page.locator("#instances")).to_contain_text("healthy")


async def test_the_notice_goes_when_the_gateway_is_back_whatever_is_shown(page: Watched) -> None:
    page.expected = ("ERR_INTERNET_DISCONNECTED",)
    await page.go("#/playground")
    await page.page.context.set_offline(True)
    await page.page.get_by_role("button", name="Predict").click()
    notice = page.page.get_by_role("status").first
    await expect(notice).to_be_visible()
    await page.page.context.set_offline(False)
    await expect(notice).to_be_hidden()


async def test_the_fleet_stays_while_the_database_does_not_answer(page: Watched) -> None:
    page.expected = ("503",)
    error = {"error": {"code": "store_unavailable", "message": "The database does not answer."}}
    await page.page.route("**/admin/overview**", lambda route: route.fulfill(status=503, json=error))
    await page.go("#/overview")
    await expect(page.page.get_by_role("alert")).to_have_text("The database does not answer.")
    await page.go("#/fleet")
    await expect(page.page.locator("#instances")).to_contain_text("healthy")
    await expect(page.page.get_by_role("alert")).to_have_text("The database does not answer.")
    await page.page.unroute("**/admin/overview**")
    await expect(page.page.get_by_role("alert")).to_be_hidden()


async def test_the_fleet_goes_on_after_an_answer_that_was_cut(page: Watched) -> None:
    await page.go("#/fleet")
    await expect(page.page.locator("#instances")).to_contain_text("healthy")
    await page.page.evaluate(
        "() => { window.whole = Response.prototype.json; Response.prototype.json = async () => { throw new TypeError('network error'); }; }"
    )
    await expect(page.page.get_by_role("status").first).to_contain_text("does not answer")
    async with page.page.expect_request("**/admin/fleet"):
        await page.page.evaluate("() => { Response.prototype.json = window.whole; }")
    await expect(page.page.get_by_role("status").first).to_be_hidden()


async def test_a_page_that_nobody_sees_asks_nothing(page: Watched) -> None:
    await page.go("#/fleet")
    await expect(page.page.locator("#instances")).to_contain_text("healthy")
    asked: list[Request] = []
    ended: list[Request] = []
    page.page.on("request", lambda request: asked.append(request))  # noqa: PLW0108 (Playwright sets an attribute of it)
    page.page.on("requestfinished", lambda request: ended.append(request))  # noqa: PLW0108
    async with page.page.expect_request("**/admin/fleet"):
        pass
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
    await page.page.evaluate(hide, True)
    await page.page.wait_for_timeout(1200)
    await until(lambda: all(each in ended for each in asked))  # what was under way has ended
    asked.clear()
    await page.page.wait_for_timeout(2500)
    assert [each.url for each in asked] == []
    async with page.page.expect_request("**/admin/fleet"):
        await page.page.evaluate(hide, False)
