"""Listening sockets: for one process, or for the workers of one gateway that share a port.

Workers share a port by SO_REUSEPORT: the kernel distributes new connections over the listening sockets (Linux). Any
program of the same user could share it too. So the supervisor first checks that the port is free, and then holds it with
a socket that is bound but never listens.
"""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress

from router.config import ConfigError, Problem

#: Connections that wait to be accepted.
BACKLOG = 2048
#: The most open files that macOS lets a process have (OPEN_MAX) where it reports no maximum.
_OPEN_MAX = 10_240


def listen(host: str, port: int) -> socket.socket:
    """A listening socket for this process alone. Raises ConfigError if the address is not available."""
    listener = _bound(host, port, shared=False)
    try:
        listener.listen(BACKLOG)  # early connections wait until the server runs
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from error
    return listener


def hold(host: str, port: int) -> socket.socket:
    """Reserve a port for workers to share; port 0 takes a free one. Raises ConfigError if the port is in use."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(
            "server", [Problem(("workers",), "this system supports only one worker (no SO_REUSEPORT)")]
        )
    if port:
        listen(host, port).close()
    holder = _bound(host, port, shared=True)
    # SO_REUSEADDR was needed to bind while old connections are closing. Without it now, no socket without SO_REUSEPORT
    # can listen on the port: a second gateway sees it as in use before our workers listen.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return holder


def share(host: str, port: int) -> socket.socket:
    """A bound socket of one worker. It gets connections once it listens. Raises ConfigError."""
    return _bound(host, port, shared=True)


def raise_open_files() -> None:
    """Raise this process's limit of open files and connections, often 1024, to the system's maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        for limit in (hard, max(soft, _OPEN_MAX)):
            with suppress(ValueError, OSError):  # some systems report a higher maximum than they allow
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                return


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def url_of(listener: socket.socket) -> str:
    """The base URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol, asyncio sets TCP_NODELAY on accepted connections and sends each token at once.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise _refused(host, port, error) from error
    bound.setblocking(False)
    return bound


def _refused(host: str, port: int, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        reason = "Address already in use"  # the same words for bind() and listen()
    return ConfigError("server", [Problem((), f"cannot listen on {host}:{port}: {reason}")])
