"""The browser of these tests: found where `scripts/install-browser` puts one, and pages that tell all they did."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright, expect

#: A busy machine takes its time; what is waited for comes at once otherwise.
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)

NAMES = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A headless browser with a fresh profile: one on PATH, else Playwright's own."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, headless=True, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watched:
    """A page, and what went wrong in it: console errors and warnings (violations of the content policy are among
    them), exceptions, and requests that left this machine. `expected`: words of errors that a test provokes."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    expected: tuple[str, ...] = ()

    async def go(self, place: str) -> None:
        """Open a view by its hash, from anew."""
        await self.page.goto(f"{self.base}/ui/{place}")
        await self.page.locator("main h1").wait_for()

    def unexpected(self) -> list[str]:
        return [each for each in self.problems if not any(word in each for word in self.expected)]


@asynccontextmanager
async def watched(browser: Browser, base: str, **options: Any) -> AsyncIterator[Watched]:
    """A page in a context (cookies, storage) of its own. At its end nothing unexpected has happened in it."""
    context = await browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    seen = Watched(page, base)

    def told(message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            seen.problems.append(message.text)

    def asked(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"blob", "data"}:
            seen.hosts.add(parts.hostname or "")

    page.on("console", told)
    page.on("pageerror", lambda error: seen.problems.append(str(error)))
    page.on("request", asked)
    try:
        yield seen
        assert not seen.unexpected(), seen.unexpected()
        assert seen.hosts <= {"127.0.0.1"}, seen.hosts
        assert not await context.cookies()
    finally:
        await context.close()
