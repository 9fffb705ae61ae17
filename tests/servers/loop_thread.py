"""An event loop on a thread of its own, for servers that run beside a synchronous test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def loop_thread() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Gives what runs a coroutine on the loop to its end; the loop goes on until the test has left."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    assert not thread.is_alive()
    loop.close()
