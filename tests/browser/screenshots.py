"""The screenshots of docs/ui.md: the demo's fleet under real load, looked at by the browser of these tests.

    python -m tests.browser.screenshots --reports DIR [--minutes 12] [--out docs/images]

`DIR` holds comparisons (`headway compare --out DIR/NAME`) and plans (`headway plan --out DIR/NAME`); the first of each is
shown.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import tempfile
import threading
from pathlib import Path

from PIL import Image
from playwright.async_api import Browser

from router.config.sections import UiConfig
from router.demo import fleet
from router.serve import serve
from tests.browser.chromium import Watched, chromium, watched
from tests.browser.load import load

WIDTH = 1280
#: Engines faster than real ones give a busy page in a short time.
SPEED = 2.0
RATE_PER_S = 5.0
COLOURS = 256


async def keep(page: Watched, out: Path, name: str, height: int) -> None:
    """Save what is seen of a page, down to `height` pixels, in few colours."""
    await page.page.set_viewport_size({"width": WIDTH, "height": height})
    await page.page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    await page.page.wait_for_timeout(400)
    shot = Image.open(io.BytesIO(await page.page.screenshot()))
    shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out / f"{name}.png", optimize=True)


async def shoot(browser: Browser, url: str, out: Path, comparison: str, plan: str) -> None:
    """Each view once; the overview in the dark too."""
    out.mkdir(parents=True, exist_ok=True)
    async with watched(browser, url, color_scheme="light") as page:
        await page.go("#/fleet")
        await page.page.wait_for_timeout(60_000)  # so that its small curves have something to show
        await keep(page, out, "ui-fleet", 860)
        await page.go("#/requests?policy=slo&outcome=ok")
        await page.page.locator("#requests tbody a").nth(5).click()
        await page.page.locator("#why").wait_for()
        await keep(page, out, "ui-request", 1180)
        await page.go("#/playground")
        await page.page.get_by_label("TTFT target, ms").fill("400")
        await page.page.get_by_label("Compare two policies").check()
        await page.page.get_by_role("button", name="Send").click()
        await page.page.get_by_role("link", name="Why, and every attempt").nth(1).wait_for(timeout=60_000)
        await keep(page, out, "ui-playground", 1060)
        await page.go(f"#/comparisons/{comparison}")
        await page.page.locator("#cells tbody tr").first.wait_for()
        await keep(page, out, "ui-comparisons", 1900)
        await page.go(f"#/plans/{plan}")
        await page.page.get_by_role("region", name="Ranked plans").wait_for()
        await keep(page, out, "ui-plans", 1640)
    for theme, name in (("light", "ui-overview"), ("dark", "ui-overview-dark")):
        async with watched(browser, url, color_scheme=theme) as page:
            await page.go("#/overview?window=900")
            await page.page.locator("#totals dd").first.wait_for()
            await keep(page, out, name, 1900)


async def run(url: str, minutes: float, out: Path, comparison: str, plan: str) -> None:
    """Load for a while, and the shots while it goes on."""
    busy = asyncio.create_task(load(url, RATE_PER_S, minutes * 60 + 120))
    await asyncio.sleep(minutes * 60)
    async with chromium() as browser:
        await shoot(browser, url, out, comparison, plan)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    comparison, plan = (
        sorted(args.reports.glob(f"*/{kind}.json"))[0].parent.name for kind in ("report", "plan")
    )
    with tempfile.TemporaryDirectory() as folder:
        config = fleet(port=0, speed=SPEED, database=Path(folder) / "headway.db")
        config = config.model_copy(update={"ui": UiConfig(reports=str(args.reports.absolute()))})

        def look(url: str) -> None:
            try:
                asyncio.run(run(url, args.minutes, args.out, comparison, plan))
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        return serve(config, on_ready=lambda url: threading.Thread(target=look, args=(url,)).start())


if __name__ == "__main__":
    raise SystemExit(main())
