"""Pages that the gateway serves: they need no other host, and send the same headers for safety."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from yarl import URL

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


async def test_of_the_reports_only_their_own_files_are_sent(tmp_path: Path) -> None:
    reports, outside = tmp_path / "reports", tmp_path / "outside"
    for number, name in enumerate(
        (
            "reports/plan/plan.json",
            "reports/compared/report.json",
            "reports/empty/notes.txt",
            "outside/report.json",
        )
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        os.utime(path, (number, number))
    (reports / "compared" / "report.html").write_text("<p>compared</p>")
    (reports / "compared" / "plan.json").symlink_to(outside / "report.json")
    (reports / "linked").symlink_to(outside)
    async with live(tmp_path, vllm("a"), ui={"reports": str(reports)}) as gw:
        assert await gw.get("/admin/reports") == (
            200,
            {
                "configured": True,
                "reports": [
                    {
                        "name": "compared",
                        "modified_at": 1.0,
                        "bytes": 2,
                        "files": ["report.json", "report.html"],
                    },
                    {"name": "plan", "modified_at": 0.0, "bytes": 2, "files": ["plan.json"]},
                ],
            },
        )
        async with gw.http.get(f"{gw.url}/admin/reports/compared/report.html") as got:
            assert (got.status, got.content_type, await got.text()) == (200, "text/html", "<p>compared</p>")
            assert "sandbox" in got.headers["content-security-policy"]
        for path in (
            "compared/plan.json", "linked/report.json", "empty/notes.txt", "compared/curves.csv",
            "%2e%2e/report.json", "..%2foutside/report.json", "compared%2f../report.json", "%00/report.json",
        ):  # fmt: skip
            async with gw.http.get(URL(f"{gw.url}/admin/reports/{path}", encoded=True)) as got:
                assert got.status == 404, path
    async with live(tmp_path, vllm("a")) as gw:
        assert await gw.get("/admin/reports") == (200, {"configured": False, "reports": []})
        assert (await gw.get("/admin/reports/compared/report.json"))[0] == 404


async def test_a_page_is_sent_again_only_if_it_has_changed(tmp_path: Path) -> None:
    async with live(tmp_path, vllm("a")) as gw:
        async with gw.http.get(f"{gw.url}/ui", allow_redirects=False) as got:
            assert (got.status, got.headers["location"]) == (308, "ui/")
        async with gw.http.get(f"{gw.url}/ui/") as got:
            known = {"if-none-match": got.headers["etag"]}
        async with gw.http.get(f"{gw.url}/ui/", headers=known) as got:
            assert (got.status, await got.read()) == (304, b"")
        async with gw.http.get(f"{gw.url}/ui/fleet.js", headers=known) as got:
            assert got.status == 200
        assert (await gw.get("/ui/none.js"))[0] == 404
