"""Pages that the gateway serves: they need no other host, and send the same headers for safety."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from tests.integration.gateway.live import live, vllm

SAFETY = (
    "content-security-policy", "x-content-type-options", "referrer-policy", "cross-origin-opener-policy",
    "cross-origin-resource-policy", "cache-control",
)  # fmt: skip


async def test_pages_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with live(tmp_path, vllm("a")) as gw:
        headers = set()
        for page in ("/docs", "/ui/"):
            ahead, seen = [page], set()
            while ahead:
                path = ahead.pop()
                if path in seen or path in {"/openapi.json", "/ui/"} - {page}:
                    continue
                seen.add(path)
                async with gw.http.get(gw.url + path) as got:
                    text = await got.text()
                    assert got.status == 200, path
                    headers.add(tuple(got.headers[name] for name in SAFETY))
                named = re.findall(r"""(?:src|href|from|import)[=\s(]+["']([^"'#$]+)["']""", text)
                for name in named:
                    assert not urlsplit(name).netloc, (path, name)
                    ahead.append(urljoin(path, name))
            assert len(seen) > 4
        ((policy, *_),) = headers  # the same for all
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        status, document = await gw.get("/openapi.json")
        assert (status, "/v1/chat/completions" in document["paths"]) == (200, True)


async def test_pages_that_are_switched_off_are_not_there(tmp_path: Path) -> None:
    async with live(tmp_path, vllm("a"), ui={"enabled": False}) as gw:
        for path in ("/docs", "/ui/", "/ui/docs.js", "/redoc", "/docs/oauth2-redirect"):
            async with gw.http.get(gw.url + path, allow_redirects=False) as got:
                assert got.status == 404, path
