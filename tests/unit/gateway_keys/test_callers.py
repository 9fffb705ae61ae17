"""Who calls: headers given twice, names and pages of an open gateway, and who may use /admin without a key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.config import FleetConfig
from router.core.errors import Refusal
from router.gateway.fleet.rules import Rules
from router.gateway.http.own_pages import authority
from router.gateway.intake.callers import caller_terms, check_admin, given_twice
from router.gateway.keys.keyring import new_key

KEY, SHA256 = new_key()


def rules(*, keys: bool = False, host: str = "127.0.0.1", allowed_hosts: tuple[str, ...] = ()) -> Rules:
    fleet: dict[str, Any] = {
        "server": {"host": host, "allowed_hosts": allowed_hosts},
        "models": [{"name": "m"}],
        "auth": {"keys": [{"name": "team", "sha256": SHA256}] if keys else []},
    }
    return Rules.of(FleetConfig.model_validate(fleet), ("latency",))


def refused(rules: Rules, *headers: tuple[bytes, bytes]) -> int | None:
    """The status of the refusal, None if it is let in."""
    try:
        caller_terms(rules, headers, dict(headers))
    except Refusal as refusal:
        return refusal.status
    return None


# --- given twice ----------------------------------------------------------------------------------------
BEARER = b"Bearer " + KEY.encode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"authorization", BEARER)], None),
        ([(b"authorization", b"Bearer other"), (b"authorization", BEARER)], 401),
        ([(b"authorization", BEARER), (b"authorization", b"Bearer other")], 401),
        ([(b"authorization", BEARER), (b"authorization", BEARER)], 401),
        ([(b"authorization", BEARER), (b"host", b"a"), (b"host", b"b")], 400),
        ([(b"authorization", BEARER), (b"x-headway-policy", b"a"), (b"x-headway-policy", b"b")], 400),
        ([(b"authorization", BEARER), (b"x-llm-d-slo-ttft-ms", b"1"), (b"x-llm-d-slo-ttft-ms", b"2")], 400),
        ([(b"authorization", BEARER), (b"x-session-id", b"a"), (b"x-session-id", b"a")], 400),
        ([(b"authorization", BEARER), (b"accept", b"a"), (b"accept", b"b")], None),
        ([(b"x-headway-policy", b"a"), (b"x-headway-policy", b"b")], 401),  # nobody's: no row of a known key
    ],
)
def test_what_decides_is_given_once(headers: list[tuple[bytes, bytes]], status: int | None) -> None:
    assert refused(rules(keys=True), *headers) == status


NAMES = st.sampled_from([b"authorization", b"host", b"x-headway-models", b"accept", b"cookie", b"origin"])


@given(st.lists(st.tuples(NAMES, st.binary(max_size=3)), max_size=6))
def test_no_order_of_headers_hides_a_second_one(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    expected = {name for name in names if names.count(name) > 1} - {b"accept", b"cookie"}
    assert set(given_twice(headers)) == expected


# --- pages ------------------------------------------------------------------------------------------------
HERE = b"127.0.0.1:8080"


@pytest.mark.parametrize(
    ("host", "more", "status"),
    [
        (HERE, {}, None),
        (b"localhost:8080", {}, None),
        (b"LOCALHOST:8080", {}, None),
        (b"[::1]:8080", {}, None),
        (b"app.localhost", {}, None),
        (b"localhost.", {}, None),
        (None, {}, None),
        (b"evil.example:8080", {}, 403),
        (b"localhost.evil.example", {}, 403),
        (b"127.0.0.1.evil.example", {}, 403),
        (b"evil@127.0.0.1", {}, 403),
        (b"10.0.0.7:8080", {}, 403),
        (b"", {}, 403),
        (b"[::1", {}, 403),
        (HERE, {b"origin": b"http://127.0.0.1:8080"}, None),
        (HERE, {b"origin": b"http://127.0.0.1:8080", b"sec-fetch-site": b"same-origin"}, None),
        (HERE, {b"origin": b"http://localhost:8080"}, 403),
        (HERE, {b"origin": b"http://127.0.0.1:3000"}, 403),
        (HERE, {b"origin": b"http://evil.example"}, 403),
        (HERE, {b"origin": b"null"}, 403),
        (HERE, {b"origin": b""}, 403),
        (HERE, {b"origin": b"file://"}, 403),
        (None, {b"origin": b"http://127.0.0.1:8080"}, 403),
        (b"evil.example", {b"origin": b"http://evil.example"}, 403),
        (HERE, {b"sec-fetch-site": b"none"}, None),
        (HERE, {b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": b"no-cors"}, 403),
        (HERE, {b"sec-fetch-site": b"same-site", b"sec-fetch-mode": b"cors"}, 403),
        (
            HERE,
            {
                b"sec-fetch-site": b"cross-site",
                b"sec-fetch-mode": b"navigate",
                b"sec-fetch-dest": b"document",
            },
            None,
        ),
        (
            HERE,
            {b"sec-fetch-site": b"cross-site", b"sec-fetch-mode": b"navigate", b"sec-fetch-dest": b"iframe"},
            403,
        ),
    ],
)
def test_an_open_gateway_on_loopback_answers_programs_and_its_own_page(
    host: bytes | None, more: dict[bytes, bytes], status: int | None
) -> None:
    headers = [*([] if host is None else [(b"host", host)]), *more.items()]
    assert refused(rules(), *headers) == status
    with_key = refused(rules(keys=True), *headers, (b"authorization", BEARER))
    assert with_key is None  # no page of another site has it


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        (b"gateway:8080", None, None),
        (b"headway.lan", None, None),
        (b"10.0.0.7:8080", b"http://10.0.0.7:8080", None),
        (b"localhost:8080", b"http://localhost:8080", None),
        (b"known.example", b"https://known.example", None),
        (b"headway.lan", b"http://headway.lan", 403),  # a name of others may point here
        (b"10.0.0.7:8080", b"http://evil.example", 403),
    ],
)
def test_an_open_gateway_on_a_network_answers_pages_by_address_only(
    host: bytes, origin: bytes | None, status: int | None
) -> None:
    headers = [(b"host", host), *([] if origin is None else [(b"origin", origin)])]
    assert refused(rules(host="0.0.0.0", allowed_hosts=("known.example",)), *headers) == status


@given(st.binary(max_size=40))
@example(b".")
def test_any_host_is_read_without_a_fault(host: bytes) -> None:
    found = authority(host)
    assert found is None or found[0]


# --- /admin -----------------------------------------------------------------------------------------------
def admin_refused(
    rules: Rules, headers: dict[bytes, bytes], client: str = "127.0.0.1", version: str = "1.1"
) -> bool:
    try:
        scope = {
            "headers": list(headers.items()),
            "client": None if client is None else (client, 40000),
            "http_version": version,
        }
        check_admin(rules, None, scope)
    except Refusal as refusal:
        return refusal.status == 401
    return False


def test_who_may_use_admin_without_a_key() -> None:
    assert not admin_refused(rules(), {b"host": HERE})
    assert admin_refused(rules(), {b"host": HERE}, version="1.0")  # nginx, as it comes
    assert admin_refused(rules(), {b"host": b"evil.example"})
    assert admin_refused(rules(), {b"host": HERE}, client="10.0.0.7")
    assert admin_refused(rules(host="0.0.0.0"), {b"host": HERE})
    assert admin_refused(rules(keys=True), {b"host": HERE})  # a proxy that says nothing looks the same
    closed = rules()
    closed.keys.close()
    assert admin_refused(closed, {b"host": HERE})
