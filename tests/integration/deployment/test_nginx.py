"""A real nginx with our settings, before a real gateway and before none."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.integration.gateway.live import live, vllm
from tests.servers.ports import HeldPort

ROOT = Path(__file__).resolve().parents[3]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

#: CI installs it (scripts/install-nginx).
pytestmark = pytest.mark.skipif(NGINX is None and "CI" not in os.environ, reason="nginx is not installed")


@asynccontextmanager
async def nginx(directory: Path, gateway: str) -> AsyncIterator[str]:
    """The file of docker-compose.yml, with a plain upstream as docs/deployment.md has it; the proxy's host and port."""
    with HeldPort() as port:
        text = (ROOT / "deploy" / "nginx" / "nginx.conf").read_text(encoding="utf-8")
        for old, new in (
            (r"/tmp/", f"{directory}/"),  # noqa: S108
            (r"listen 8080", f"listen 127.0.0.1:{port.number}"),
            (r"/etc/nginx/headway.conf", str(ROOT / "deploy" / "nginx" / "headway.conf")),
            (r"server gateway:8080 resolve", f"server {gateway}"),
            (r"resolver .*", ""),
            (r"zone .*", ""),
        ):
            text = re.sub(old, new, text)
        (directory / "nginx.conf").write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            str(NGINX),
            *("-p", str(directory), "-c", str(directory / "nginx.conf")),
            *("-e", str(directory / "error.log"), "-g", "daemon off; master_process off;"),
        )
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", port.number)
                    except OSError:
                        await asyncio.sleep(0.02)
                    else:
                        writer.close()
                        break
            yield f"127.0.0.1:{port.number}"
        finally:
            process.terminate()
            await process.wait()


async def test_without_a_gateway_the_answer_is_the_503_that_it_says(tmp_path):
    async with nginx(tmp_path, "127.0.0.1:1") as host, aiohttp.ClientSession() as http:
        async with http.get(f"http://{host}/v1/models") as answer:
            assert (answer.status, answer.content_type) == (503, "application/json")
            assert (await answer.json())["error"]["code"] == "no_gateway"
        async with http.get(f"http://{host}/metrics") as answer:
            assert answer.status == 404


async def test_a_page_of_an_open_gateway_works_behind_a_port(tmp_path):
    async with (
        live(tmp_path, vllm("a")) as gw,
        nginx(tmp_path, f"127.0.0.1:{gw.port}") as host,
        aiohttp.ClientSession() as http,
    ):
        own = {"origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        ask = {"model": "auto", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        async with http.post(f"http://{host}/v1/chat/completions", json=ask, headers=own) as answer:
            assert answer.status == 200, await answer.text()
        async with http.get(f"http://{host}/admin/fleet", headers=own) as answer:
            assert answer.status == 401  # what comes through a proxy is not local
