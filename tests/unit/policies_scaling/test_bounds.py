"""Every scaler keeps the pools' bounds and cool-down, and gives the same decisions for the same observations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.scaling import SCALERS, create
from policies.scaling.bounds import Bounded
from tests.unit.policies_scaling.cases import pool, seen

#: In flight, queued and arrivals of one moment.
LOADS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 100), st.integers(0, 200)), min_size=1, max_size=40
)


def followed(name, loads, one):
    """(time, before, after) of each decision, where all that is wanted is there 30 s later."""
    scaler = create(name, [one])
    ready, starting, found = one.max_instances, [], []
    for step, (in_flight, queued, arrivals) in enumerate(loads):
        now_s = step * 15.0
        ready += sum(at_s <= now_s for at_s in starting)
        starting = [at_s for at_s in starting if at_s > now_s]
        current = ready + len(starting)
        here = seen(
            now_s, ready, in_flight, queued, starting=len(starting), arrivals=arrivals, answers=arrivals
        )
        wanted = scaler.desired(here)["p"]
        found.append((now_s, current, wanted))
        starting += [now_s + 30.0] * (wanted - current)
        for _ in range(current - wanted):
            if starting:
                starting.pop()
            else:
                ready -= 1
    return found


@pytest.mark.parametrize("name", SCALERS)
@given(LOADS, st.integers(0, 2), st.integers(2, 6), st.sampled_from([0.0, 60.0]))
def test_bounds_and_cooldown(name, loads, least, most, cooldown_s):
    found = followed(name, loads, pool(min_instances=least, max_instances=most, cooldown_s=cooldown_s))
    assert all(least <= wanted <= most for _, _, wanted in found)
    grew = [at_s for at_s, before, after in found if after > before]
    shrank = [at_s for at_s, before, after in found if after < before]
    assert not any(0 <= down - up < cooldown_s for up in [0.0, *grew] for down in shrank)


@pytest.mark.parametrize("name", SCALERS)
@given(LOADS)
def test_equal_observations_give_equal_decisions(name, loads):
    assert followed(name, loads, pool()) == followed(name, loads, pool())


@pytest.mark.parametrize("name", SCALERS)
def test_a_waiting_request_wakes_a_pool(name):
    one = pool(max_instances=1)
    assert create(name, [one]).desired(seen(0.0, 0, 0, 1))["p"] == 1


@pytest.mark.parametrize("dear", [{"usd_per_hour": 2.0}, {"usd_per_hour": 1.0, "gpus": 4}])
def test_of_several_pools_the_cheapest_wakes(dear):
    class Nothing:
        def desired(self, observation):
            return {"p": 0, "q": 0}

    pools = [pool("p", **dear), pool("q", usd_per_hour=1.0)]
    found = seen(0.0, 0, 0, 1)
    observation = type(found)(0, 15, {**found.pools, "q": found.pools["p"]}, found.models)
    assert Bounded(Nothing(), pools).desired(observation) == {"p": 0, "q": 1}
