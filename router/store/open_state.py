"""Opens the shared state that a fleet file names."""

from __future__ import annotations

from router.store.state import MemoryState, State


def open_state(
    url: str, *, name: str, run_id: str, timeout_s: float, interval_s: float, replicas: int = 1
) -> State:
    """`memory://` is for this process alone. redis:// and rediss://, with a user and a password if needed, are shared by
    all replicas of the fleet `name`. `run_id` identifies this run and is unique; at least `replicas` replicas serve.
    Raises ValueError for another URL, and ImportError if the Redis client is not installed."""
    if url == "memory://":
        return MemoryState(run_id)
    if not url.startswith(("redis://", "rediss://")):
        raise ValueError("the shared state's URL must be memory:// or begin with redis:// or rediss://")
    from router.store.redis_state import RedisState

    return RedisState(
        url, name=name, run_id=run_id, timeout_s=timeout_s, interval_s=interval_s, replicas=replicas
    )
