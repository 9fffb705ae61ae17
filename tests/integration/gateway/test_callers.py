"""Web pages, proxies and headers given twice, before a real gateway."""

from __future__ import annotations

from router.gateway.endpoints import ROUTES
from tests.integration.gateway.live import bearer, key, live, vllm

CHAT = b'{"model": "auto", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}'
#: Paths of FastAPI, one of each kind.
OTHERS = [
    "/", "/metrics", "/docs", "/openapi.json", "/ui/", "/ui/about.json", "/v1/models",
    "/v1/routing/x", "/api/tags", "/api/version", "/admin/fleet", "/admin/requests", "/nothing",
]  # fmt: skip

OF_PROXIES = [
    "forwarded", "x_forwarded_for", "x_forwarded_host", "x_forwarded_proto", "x_real_ip", "via", "cf_ray",
    "cf_connecting_ip", "true_client_ip", "x_envoy_external_address", "x_original_host", "x_client_ip",
    "x_cluster_client_ip", "fastly_client_ip", "x_amzn_trace_id",
]  # fmt: skip


def request(method: str, path: str, body: bytes = b"", **headers: str | list[str]) -> bytes:
    """A request with exactly these headers (a list: the header as often)."""
    lines = [f"{method} {path} HTTP/1.1", f"content-length: {len(body)}", "connection: close"]
    for name, values in headers.items():
        lines += [
            f"{name.replace('_', '-')}: {value}"
            for value in ([values] if isinstance(values, str) else values)
        ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def status_of(gw, *args, **kwargs) -> int:
    answer = await gw.raw(request(*args, **kwargs))
    return int(answer.split(b" ", 2)[1])


async def test_a_web_page_gets_nothing_of_an_open_gateway(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        here = f"127.0.0.1:{gw.port}"
        pages = [
            {"host": here, "origin": "https://evil.example", "content_type": "text/plain"},  # fetch, no-cors
            {"host": here, "origin": "null", "content_type": "text/plain"},  # a form in a sandboxed frame
            {"host": f"evil.example:{gw.port}", "origin": f"http://evil.example:{gw.port}"},  # DNS rebinding
            {"host": f"evil.example:{gw.port}"},
            {"host": here, "sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},  # <img>
        ]
        for page in pages:
            for path in ROUTES:
                assert await status_of(gw, "POST", path, CHAT, **page) == 403, (path, page)
            for path in OTHERS:
                assert await status_of(gw, "GET", path, **page) == 403, (path, page)
            for path in ("/v1/routing/predict", "/v1/feedback", "/admin/reload", "/admin/instances"):
                assert await status_of(gw, "POST", path, CHAT, **page) == 403, (path, page)
        assert all(row["outcome"] == "rejected_auth" for row in await gw.rows())


async def test_programs_and_the_gateways_own_page_are_answered(tmp_path):
    async with live(tmp_path, vllm("a")) as gw:
        for host in (f"127.0.0.1:{gw.port}", f"localhost:{gw.port}", f"[::1]:{gw.port}"):
            assert await status_of(gw, "POST", "/v1/chat/completions", CHAT, host=host) == 200
            own = {"host": host, "origin": f"http://{host}", "sec_fetch_site": "same-origin"}
            assert await status_of(gw, "POST", "/v1/chat/completions", CHAT, **own) == 200
            assert await status_of(gw, "GET", "/admin/fleet", **own) == 200
            linked = {"host": host, "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
            assert await status_of(gw, "GET", "/ui/", **linked, sec_fetch_dest="document") == 200
        for path in ("/healthz", "/health", "/readyz"):  # probes may ask under any name
            assert await status_of(gw, "GET", path, host="gateway-0.pods:8080") == 200
            assert await status_of(gw, "GET", path, host="gateway-0.pods:8080", authorization="x") == 200


async def test_a_body_without_a_content_type_is_told_which(tmp_path):
    async with live(tmp_path, vllm("a"), environment={"HEADWAY_ADMIN_KEY": "root"}) as gw:
        for path in ("/admin/keys", "/admin/instances", "/admin/targets", "/v1/feedback"):
            method = "PATCH" if path == "/admin/targets" else "POST"
            for kind in (
                {},
                {"content_type": "text/plain"},
                {"content_type": "application/x-www-form-urlencoded"},
            ):
                headers = {"host": "localhost", "authorization": "Bearer root"} | kind
                answer = await gw.raw(request(method, path, b'{"name": "a"}', **headers))
                assert answer.startswith(b"HTTP/1.1 400"), (path, kind)
                assert b"The body must be a JSON object, with content-type: application/json." in answer


async def test_a_name_may_be_allowed(tmp_path):
    server = {"allowed_hosts": ["Headway.Test"]}
    async with live(tmp_path, vllm("a"), server=server) as gw:
        page = {"host": "headway.test", "origin": "https://headway.test"}
        assert await status_of(gw, "POST", "/v1/chat/completions", CHAT, **page) == 200
        assert await status_of(gw, "POST", "/v1/chat/completions", CHAT, host="other.test") == 403


async def test_two_keys_are_refused_everywhere(tmp_path):
    auth, environment = {"keys": [key("sesame"), key("other")]}, {"HEADWAY_ADMIN_KEY": "root"}
    async with live(tmp_path, vllm("a"), auth=auth, environment=environment) as gw:
        for path in (*ROUTES, "/v1/routing/predict", "/v1/models", "/api/tags", "/v1/keys/self"):
            method, body = ("POST", CHAT) if path in ROUTES or path.endswith("predict") else ("GET", b"")
            for keys in (
                ["Bearer sesame", "Bearer other"],
                ["Bearer wrong", "Bearer sesame"],
                ["Bearer sesame"] * 2,
            ):
                assert await status_of(gw, method, path, body, host="h", authorization=keys) == 401, path
            again = {"host": "h", "authorization": "Bearer sesame", "x_headway_policy": ["cost", "price"]}
            answer = await gw.raw(request(method, path, body, **again))
            assert answer.startswith(b"HTTP/1.1 400"), path
            assert b"x-headway-policy" in answer
        assert (await gw.get("/admin/fleet", headers=bearer("root")))[0] == 200
        for keys in (["Bearer wrong", "Bearer root"], ["Bearer root"] * 2):
            assert await status_of(gw, "GET", "/admin/fleet", host="h", authorization=keys) == 401


async def test_what_comes_through_a_proxy_is_not_local(tmp_path):
    """As nginx, HAProxy and others send it, with and without a word of the client."""
    async with live(tmp_path, vllm("a")) as gw:
        here = f"127.0.0.1:{gw.port}"
        assert await status_of(gw, "GET", "/admin/fleet", host=here) == 200
        for header in OF_PROXIES:
            assert await status_of(gw, "GET", "/admin/fleet", host=here, **{header: "x"}) == 401
        nginx = f"GET /admin/fleet HTTP/1.0\r\nHost: {here}\r\nConnection: close\r\n\r\n"  # as it comes
        assert (await gw.raw(nginx.encode())).split(b" ", 2)[1] == b"401"
    (tmp_path / "keys").mkdir()
    async with live(tmp_path / "keys", vllm("a"), auth={"keys": [key("sesame")]}) as gw:
        assert await status_of(gw, "GET", "/admin/fleet", host=f"127.0.0.1:{gw.port}") == 401


async def test_a_reload_does_not_make_a_network_address_loopback(tmp_path):
    """The listener stays where it is, so whoever asks is no more of this machine than before."""
    async with live(tmp_path, vllm("a"), server={"host": "0.0.0.0"}) as gw:
        assert (await gw.get("/admin/fleet"))[0] == 401
        server = gw.gateway.config.server.model_copy(update={"host": "127.0.0.1"})
        fleet = gw.gateway.fleet
        fleet.commit(await fleet.prepare(gw.gateway.config.model_copy(update={"server": server})), {})
        assert (await gw.get("/admin/fleet"))[0] == 401
