"""Opens the state that a fleet file names."""

from __future__ import annotations

from router.store.state import MemoryState, State


def open_state(
    url: str, *, name: str, run_id: str, timeout_s: float, interval_s: float, replicas: int = 1
) -> State:
    """The state of a URL: `memory://` for a single process, redis:// or rediss:// (with user and password if necessary)
    for all replicas of the fleet `name`.

    `run_id` is this run's unique id; at least `replicas` replicas are known to serve. Raises ValueError for another URL,
    ImportError without the client for Redis.
    """
    if url == "memory://":
        return MemoryState(run_id)
    if not url.startswith(("redis://", "rediss://")):
        raise ValueError("the shared state's URL must be memory:// or begin with redis:// or rediss://")
    from router.store.redis_state import RedisState

    return RedisState(
        url, name=name, run_id=run_id, timeout_s=timeout_s, interval_s=interval_s, replicas=replicas
    )
