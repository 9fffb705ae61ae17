"""How long a request waits for slots that become free at random."""

from __future__ import annotations

import pytest

from router.core import admission
from router.core.state import Instance
from tests.unit.core.worlds import instance


def freeing(name: str, gap_s: float | None, *, healthy: bool = True) -> Instance:
    made = instance(name)
    made.release_gap_s, made.healthy = gap_s, healthy
    return made


def test_slots_become_free_at_all_instances_that_serve() -> None:
    several = [freeing("a", 2.0), freeing("b", 3.0), freeing("c", None), freeing("d", 0.1, healthy=False)]
    assert admission.gap_s(several) == pytest.approx(1.2)
    assert admission.gap_s(several[2:]) is None
    assert admission.gap_s([freeing("a", 0.0)]) == pytest.approx(0.0, abs=1e-5)  # two ended at once
    assert admission.wait_s(4, several, 0.5) == pytest.approx(4 * 1.2)
    assert admission.wait_s(4, several, 0.9) == pytest.approx(1.2 * (4 + 1.2816 * 2), rel=1e-3)
    assert admission.wait_s(4, several[2:], 0.9) == 0.0
