"""Profiles of engines, by what a test is about: what it does not name takes no time."""

from __future__ import annotations

from typing import Any

from router.core.profile import EngineProfile


def profile(name: str = "p", **costs: Any) -> EngineProfile:
    """A profile with these costs and limits."""
    free = dict.fromkeys(("overhead_s", "floor_s", "per_token_s", "per_kv_token_s", "per_pair_s"), 0.0)
    return EngineProfile(name, **(free | {"kv_capacity_tokens": 100_000} | costs))
