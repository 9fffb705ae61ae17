"""What /ui and the reports answer over HTTP; no browser is needed for it."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

from tests.browser.conftest import ADMIN_KEY
from tests.integration.gateway.live import bearer, live, vllm


async def test_the_page_comes_with_its_safety_and_is_not_sent_twice(tmp_path: Path) -> None:
    async with live(tmp_path, vllm("a")) as gw:
        async with gw.http.get(f"{gw.url}/ui", allow_redirects=False) as moved:
            assert (moved.status, moved.headers["location"]) == (308, "ui/")
        names = [entry.name for entry in files("router.ui").iterdir() if not entry.name.startswith("__")]
        assert {"index.html", "app.js", "base.css", "icon.svg"} <= set(names)
        for name in ("", *names):
            async with gw.http.get(f"{gw.url}/ui/{name}") as got:
                body = await got.read()
                assert got.status == 200
                assert "default-src 'self'" in got.headers["content-security-policy"]
                assert "unsafe" not in got.headers["content-security-policy"]
                assert got.headers["x-content-type-options"] == "nosniff"
                assert "set-cookie" not in got.headers
                tag = got.headers["etag"]
            # Nothing of it points anywhere else (an SVG's namespace is a name, not an address that is asked).
            assert set(re.findall(rb"https?://[\w.]+", body)) <= {b"http://www.w3.org"}, name
            assert b"innerHTML" not in body
            async with gw.http.get(f"{gw.url}/ui/{name}", headers={"If-None-Match": tag}) as again:
                assert (again.status, await again.read()) == (304, b"")
            async with gw.http.head(f"{gw.url}/ui/{name}") as head:
                assert (head.status, head.headers["content-length"]) == (200, str(len(body)))
        for name in ("__init__.py", "nothing.js", "..%2fgateway%2fapi.py", "%2e%2e/wiring.py"):
            async with gw.http.get(f"{gw.url}/ui/{name}") as refused:
                assert refused.status == 404, name


async def test_a_page_that_is_switched_off_is_not_there(tmp_path: Path) -> None:
    async with live(tmp_path, vllm("a"), ui={"enabled": False, "reports": str(tmp_path)}) as gw:
        for path in ("/ui", "/ui/", "/ui/app.js", "/ui/about.json", "/admin/reports"):
            async with gw.http.get(gw.url + path, allow_redirects=False) as got:
                assert got.status == 404, path
        assert (await gw.get("/admin/overview"))[0] == 200


async def test_reports_stay_in_their_directory(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    for place in (reports / "good", tmp_path / "outside", reports / "empty"):
        place.mkdir(parents=True)
    for place in (reports / "good", tmp_path / "outside"):
        (place / "report.json").write_text('{"headway_report": 3}')
    (reports / "good" / "report.html").write_text("<style>p{color:red}</style><p>")
    (reports / "good" / "notes.txt").write_text("private")
    (reports / "planned").mkdir()
    (reports / "planned" / "plan.json").write_text('{"headway_plan": 1}')
    (reports / "planned" / "plan.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (reports / "planned" / "fleet.yaml").write_text("models: []")
    os.utime(reports / "planned" / "plan.json", (1, 1))
    (reports / "linked").symlink_to(tmp_path / "outside")
    (reports / "good" / "cells.csv").symlink_to(tmp_path / "outside" / "report.json")
    async with live(
        tmp_path, vllm("a"), ui={"reports": str(reports)}, environment={"HEADWAY_ADMIN_KEY": ADMIN_KEY}
    ) as gw:
        key = bearer(ADMIN_KEY)
        assert (await gw.get("/admin/reports"))[0] == 401
        assert (await gw.get("/admin/reports/good/report.json"))[0] == 401
        status, told = await gw.get("/admin/reports", headers=key)
        assert (status, told["configured"]) == (200, True)
        found = [(each["name"], each["files"]) for each in told["reports"]]
        assert found == [("good", ["report.json", "report.html"]), ("planned", ["plan.json", "plan.svg"])]
        status, report = await gw.get("/admin/reports/good/report.json", headers=key)
        assert (status, report) == (200, {"headway_report": 3})
        async with gw.http.get(f"{gw.url}/admin/reports/good/report.html", headers=key) as page:
            assert page.status == 200
            assert "sandbox" in page.headers["content-security-policy"]
        async with gw.http.get(f"{gw.url}/admin/reports/planned/plan.svg", headers=key) as drawing:
            assert (drawing.status, drawing.content_type) == (200, "image/svg+xml")
            assert "default-src 'none'" in drawing.headers["content-security-policy"]
            assert "sandbox" in drawing.headers["content-security-policy"]
        for path in (
            "good/notes.txt",
            "good/cells.csv",
            "planned/fleet.yaml",
            "planned/plan.svg%2f..%2f..%2f..%2foutside/report.json",
            "linked/report.json",
            "empty/report.json",
            "../outside/report.json",
            "..%2foutside/report.json",
            "good%2f..%2f..%2foutside/report.json",
            "%2e%2e/report.json",
            "good%00/report.json",
        ):
            # As raw bytes: a client would tidy the path up.
            answer = await gw.raw(
                f"GET /admin/reports/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ADMIN_KEY}\r\nConnection: close\r\n\r\n".encode()
            )
            assert answer.startswith(b"HTTP/1.1 404"), path
