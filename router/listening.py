"""Sockets to listen on: one of one process, or a port that the workers of one gateway share.

Workers share with SO_REUSEPORT: the kernel spreads new connections over the sockets that listen (Linux). It lets any
program of the same user join in, unasked, so the supervisor looks first whether somebody has the port, and then
holds it by a socket that is bound and never listens.
"""

from __future__ import annotations

import errno
import resource
import socket
from contextlib import suppress

from router.config import ConfigError, Problem

#: Connections that wait to be accepted.
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket of this process alone. Raises ConfigError if the address cannot be had."""
    listener = _bound(host, port, shared=False)
    try:
        listener.listen(BACKLOG)  # who connects before the server runs waits for it
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from error
    return listener


def hold(host: str, port: int) -> socket.socket:
    """Take a port for workers to share; port 0 takes a free one. Raises ConfigError if somebody has it."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError(
            "server", [Problem(("workers",), "this system knows one worker only (no SO_REUSEPORT)")]
        )
    if port:
        listen(host, port).close()
    holder = _bound(host, port, shared=True)
    # It may be bound over connections that are just ending, but nobody without SO_REUSEPORT may listen over it: so a
    # second gateway finds the port taken although none of our workers listens yet.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return holder


def share(host: str, port: int) -> socket.socket:
    """A bound socket of one worker; connections come to it from when it listens. Raises ConfigError."""
    return _bound(host, port, shared=True)


def raise_open_files() -> None:
    """Let this process open as many files (and connections) as the system allows it: what it may at first is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems tell of more than they give
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def url_of(listener: socket.socket) -> str:
    """The base URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio sends each token at once (TCP_NODELAY on accepted connections).
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
        reason = "Address already in use"  # by listen() the system says it in other words
    return ConfigError("server", [Problem((), f"cannot listen on {host}:{port}: {reason}")])
