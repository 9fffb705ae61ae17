"""A known port for a server that is another process, before it starts and while it is down."""

from __future__ import annotations

import socket
from typing import Self


class HeldPort:
    """A port of 127.0.0.1 that is ours until `close`. It is bound by a socket that never listens, so nobody else is given
    it, connections are refused while no server runs, and a server with SO_REUSEADDR, as all set it, may listen there
    at any time."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
