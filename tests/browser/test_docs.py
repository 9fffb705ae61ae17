"""/docs in a browser, under the policy that its headers set."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect

from tests.browser.chromium import watched
from tests.integration.gateway.live import Live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_every_path_is_shown(browser: Browser, gateway: Live) -> None:
    _, document = await gateway.get("/openapi.json")
    operations = sum(len(each) for each in document["paths"].values())
    async with asyncio.timeout(60), watched(browser, gateway.url) as seen:
        await seen.page.goto(f"{gateway.url}/docs")
        await expect(seen.page.locator("details[id]")).to_have_count(operations)
        await seen.page.get_by_text("POST /v1/chat/completions").click()
        await expect(
            seen.page.locator("#v1_chat_completions").get_by_text("messages", exact=True)
        ).to_be_visible()
