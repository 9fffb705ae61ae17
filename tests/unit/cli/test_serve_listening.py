"""A port is one gateway's: its workers share it, and nobody else gets in."""

from __future__ import annotations

import resource
import socket

import pytest

from router.config import ConfigError
from router.listening import hold, listen, raise_open_files, share, url_of


def port_of(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def test_workers_share_what_is_held():
    with hold("127.0.0.1", 0) as holder:
        port = port_of(holder)
        assert url_of(holder) == f"http://127.0.0.1:{port}"
        with share("127.0.0.1", port) as one, share("127.0.0.1", port) as other:
            with pytest.raises(ConnectionRefusedError):  # nothing listens yet, the holder never does
                socket.create_connection(("127.0.0.1", port))
            one.listen()
            with socket.create_connection(("127.0.0.1", port)):
                pass
            other.listen()


@pytest.mark.parametrize("serving", [False, True])
def test_nobody_else_takes_it(serving):
    """Whether our workers listen already or are still starting."""
    with hold("127.0.0.1", 0) as holder:
        port = port_of(holder)
        with share("127.0.0.1", port) as worker:
            if serving:
                worker.listen()
            for take in (hold, listen):
                with pytest.raises(
                    ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in"
                ):
                    take("127.0.0.1", port)


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_that_listens_is_not_held(shares):
    with socket.socket() as other:
        if shares:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="Address already in use"):
            hold("127.0.0.1", port_of(other))


@pytest.mark.parametrize("before", [listen, hold])
def test_connections_that_are_ending_keep_nobody_out(before):
    """After a restart the port is had again, of one process or of several."""
    with before("127.0.0.1", 0) as former:
        port = port_of(former)
        with listen("127.0.0.1", 0) if before is listen else share("127.0.0.1", port) as worker:
            if before is hold:
                worker.listen()
            else:
                port = port_of(worker)
            with socket.create_connection(("127.0.0.1", port)) as client:
                worker.setblocking(True)
                accepted, _ = worker.accept()
                accepted.close()  # who closes first keeps the ending connection
                assert client.recv(1) == b""
    hold("127.0.0.1", port).close()
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize(
    ("soft", "hard", "most", "raised"),
    [(1024, 4096, 4096, 4096), (256, 2**63 - 1, 10_240, 10_240), (20_000, 2**63 - 1, 20_000, 20_000), (256, 512, 300, 256)],
    ids=["linux", "macos", "macos, raised before", "neither"],
)  # fmt: skip
def test_open_files_are_raised_as_far_as_the_system_allows(soft, hard, most, raised, monkeypatch):
    limits = (soft, hard)

    def setrlimit(_, wanted):
        nonlocal limits
        if wanted[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        limits = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    raise_open_files()
    assert limits[0] == raised


def test_what_cannot_be_had_is_told():
    for take in (hold, listen):
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:70000"):
            take("127.0.0.1", 70000)
        with pytest.raises(ConfigError, match=r"server: cannot listen on 192\.0\.2\.1:0"):
            take("192.0.2.1", 0)
