"""What Headway's scaler wants."""

from __future__ import annotations

from collections import deque

import pytest

from policies.scaling import create
from policies.scaling.capacity import slo_capacity
from policies.scaling.types import ModelLoad, Observation, PoolLoad
from tests.unit.policies_scaling.cases import pool, seen


def steady(scaler, rate, *, minutes=60, ready=10, misses=0, start_s=0.0, in_flight=1):
    """The last wish after a time at one rate (requests/s)."""
    for step in range(1, minutes * 4 + 1):
        count = round(rate * 15)
        here = seen(start_s + step * 15.0, ready, in_flight, arrivals=count, answers=count, misses=misses)
        wanted = scaler.desired(here)["p"]
    return wanted


def served(rates_per_s, *, most=60, share=1.0, start_s=60.0, interval_s=5.0):
    """Instances wanted and misses, decision by decision, of a pool that starts what the scaler wants. Requests wait for a
    free place, and miss their SLO after 3 s. An instance carries `share` of what its profile says."""
    one = pool(cold_start_s=start_s, max_instances=most)
    capacity, scaler = slo_capacity(one, 1000, 200), create("headway", [one])
    ready, starting, waiting, under_way, found = 2, deque(), deque(), deque(), []
    for step, rate in enumerate(rates_per_s):
        now_s = step * interval_s
        while starting and starting[0] <= now_s:
            starting.popleft()
            ready += 1
        ended = [late for end_s, late in under_way if end_s <= now_s]
        under_way = deque(each for each in under_way if each[0] > now_s)
        arrivals = round(rate * interval_s)
        waiting.extend([now_s] * arrivals)
        while waiting and len(under_way) < int(ready * capacity.concurrency * share):
            late = now_s - waiting.popleft() > 3.0
            under_way.append((now_s + capacity.service_s, late))
        load = {"arrivals": arrivals, "answers": len(ended), "misses": sum(ended), "seconds": interval_s}
        observation = seen(now_s, ready, len(under_way), len(waiting), starting=len(starting), **load)
        wanted = scaler.desired(observation)["p"]
        found.append((wanted, sum(ended)))
        starting.extend([now_s + start_s] * (wanted - ready - len(starting)))
        while wanted < ready + len(starting):
            if starting:
                starting.pop()
            else:
                ready -= 1
    return found


@pytest.mark.parametrize("most", [60, 20, 8])
def test_misses_of_a_rise_do_not_keep_the_pool_large(most):
    low, high = [2.0] * 240, [6.0] * 120
    found = served(low + high + low, most=most)
    before, after = found[239][0], found[-1][0]
    assert sum(misses for _, misses in found[240:360]) > 100  # while instances start
    assert before < max(wanted for wanted, _ in found[240:360])
    assert after <= before <= 6


def test_misses_within_the_capacity_of_the_profile_want_more():
    right, wrong = (served([4.0] * 1440, share=share) for share in (1.0, 0.8))
    assert sum(misses for _, misses in wrong[720:]) < 0.03 * 4.0 * 3600
    assert right[-1][0] < wrong[-1][0]


def test_it_provides_for_the_rate_and_a_margin():
    one = slo_capacity(pool(), 1000, 200)
    for rate in (1.0, 4.0, 8.0):
        wanted = steady(create("headway", [pool()], {"miss_step": 0.0}), rate)
        assert rate / one.rate_per_s < wanted < 1 + 1.6 * rate / one.rate_per_s + 1


def test_a_larger_margin_wants_more():
    few, many = (steady(create("headway", [pool()], {"margin": margin}), 4.0) for margin in (0.0, 4.0))
    assert few < many


def test_misses_under_load_want_more():
    calm = steady(create("headway", [pool()]), 4.0, in_flight=60)
    missing = steady(create("headway", [pool()]), 4.0, misses=6, in_flight=60)
    idle = steady(create("headway", [pool()]), 4.0, misses=6, in_flight=1)
    assert idle == steady(create("headway", [pool()]), 4.0, in_flight=1) <= calm < missing


def test_what_is_there_counts():
    scaler = create("headway", [pool()])
    steady(scaler, 1.0)
    assert scaler.desired(seen(3615.0, 2, 20, 60, arrivals=15))["p"] >= 6


def test_it_grows_before_the_morning_and_goes_to_zero_at_night():
    one = pool(cold_start_s=300.0, cooldown_s=600.0)
    scaler = create("headway", [one])
    for day in range(3):
        for step in range(96):
            at_s = day * 86400.0 + (step + 1) * 900.0
            busy = 32 <= step < 80  # from 8:00 to 20:00
            load = ModelLoad(3600 if busy else 0, 3600 * 1000 if busy else 0)
            scaler.learn(Observation(at_s, 900.0, {}, {"m": load}))
    for at_s, ready in ((2 * 3600.0, 0), (7.9 * 3600.0, 0)):
        scaler.desired(seen(3 * 86400.0 + at_s - 15, ready))
        wanted = scaler.desired(seen(3 * 86400.0 + at_s, ready))["p"]
        assert (wanted > 0) == (at_s > 7 * 3600)


def test_it_adds_the_cheapest_kind():
    pools = [
        pool("p", usd_per_hour=0.7, max_instances=2),
        pool("q", "llama-3.1-8b@a100-80g", usd_per_hour=2.0, concurrency=40),
    ]
    scaler = create("headway", pools, {"miss_step": 0.0})
    found = {"p": 0, "q": 0}
    for step in range(1, 100):
        loads = {name: PoolLoad(number) for name, number in found.items()}
        load = ModelLoad(150, 150_000, 150, 30_000)
        found = dict(scaler.desired(Observation(step * 15.0, 15.0, loads, {"m": load})))
    # Ten requests/s take two A100 at 2 USD, or ten L4 at 0.7 USD, of which there are two.
    rates = [slo_capacity(each, 1000, 200).rate_per_s for each in pools]
    assert found["q"] >= 1
    assert found["p"] * rates[0] + found["q"] * rates[1] > 10.0


@pytest.mark.parametrize("usd_per_hour", [0.7, 0.0])
def test_requests_at_slow_instances_are_no_load_of_fast_ones(usd_per_hour):
    slow = pool("p", usd_per_hour=usd_per_hour, max_instances=60)
    fast = pool("q", "llama-3.1-8b@h100-80g", usd_per_hour=4.0, max_instances=9, concurrency=64)
    under_way = round(4.0 * slo_capacity(slow, 1000, 200).service_s)
    assert under_way > 3 * 4.0 * slo_capacity(fast, 1000, 200).service_s
    scaler = create("headway", [slow, fast])
    for step in range(1, 100):
        load = ModelLoad(60, 60_000, 60, 12_000)
        loads = {"p": PoolLoad(12, in_flight=under_way), "q": PoolLoad(0)}
        wanted = scaler.desired(Observation(step * 15.0, 15.0, loads, {"m": load}))
    assert wanted == {"p": steady(create("headway", [slow]), 4.0, ready=12, in_flight=under_way), "q": 0}


def test_instances_that_cost_nothing_come_first():
    own, rented = pool("p", max_instances=3), pool("q", usd_per_hour=0.7)
    scaler = create("headway", [own, rented], {"miss_step": 0.0})
    found = {"p": 0, "q": 0}
    for step in range(1, 100):
        loads = {name: PoolLoad(number) for name, number in found.items()}
        load = ModelLoad(30, 30_000, 30, 6_000)
        found = dict(scaler.desired(Observation(step * 15.0, 15.0, loads, {"m": load})))
    assert found["p"] == 3
    assert found["q"] >= 1


def test_what_was_needed_lately_is_kept():
    scaler = create("headway", [pool(cold_start_s=15.0)], {"miss_step": 0.0, "hold_s": 120.0, "keep_s": 15.0})
    before = steady(scaler, 1.0)
    peak = scaler.desired(seen(3615.0, before, 100, 60, arrivals=15))["p"]
    wanted = [scaler.desired(seen(3615.0 + after_s, peak, 5, arrivals=15))["p"] for after_s in (30, 90, 300)]
    assert before < peak == wanted[0] == wanted[1] > wanted[2]


def test_a_past_without_lengths_says_nothing_about_lengths():
    one, found = pool(concurrency=60), []
    for past_tokens in (0, 1000):
        scaler = create("headway", [one])
        for window in range(1, 97):
            load = ModelLoad(3600, 3600 * past_tokens)
            scaler.learn(Observation(window * 900.0, 900.0, {}, {"m": load}))
        found.append(steady(scaler, 4.0, minutes=2, start_s=86400.0))
    assert found[0] == found[1] > 4.0 / slo_capacity(one, 1000, 200).rate_per_s
