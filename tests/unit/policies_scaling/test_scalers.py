"""What each scaler wants, case by case."""

from __future__ import annotations

from dataclasses import fields
from math import nan

import pytest

from policies.scaling import SCALERS, create
from tests.unit.policies_scaling.cases import decisions, pool, seen

#: Scaler, settings, observations as (time, ready, in flight, queued), wishes.
CASES = [
    ("none", {}, [(0, 3, 90, 50), (15, 3, 0, 0)], [3, 3]),
    ("none", {"instances": 7}, [(0, 3, 0, 0)], [7]),
    # One step above the threshold, and not more often than every 15 s.
    ("queue", {}, [(0, 2, 20, 10), (5, 2, 20, 11), (10, 3, 30, 40), (20, 3, 30, 40)], [2, 3, 3, 4]),
    ("queue", {"step": 3, "threshold": 0}, [(0, 2, 20, 1)], [5]),
    ("queue", {}, [(0, 0, 0, 1)], [1]),
    # Shrinks by one after each time without a queue, to nothing only without a request.
    (
        "queue",
        {"down_after_s": 30},
        [
            (0, 3, 5, 0),
            (20, 3, 5, 0),
            (30, 3, 5, 0),
            (45, 2, 5, 0),
            (60, 2, 5, 0),
            (95, 1, 1, 0),
            (95, 1, 0, 0),
        ],
        [3, 3, 2, 2, 1, 1, 0],
    ),
    ("queue", {"down_after_s": 30}, [(0, 3, 5, 0), (20, 3, 30, 1), (40, 3, 5, 0), (60, 3, 5, 0)], [3] * 4),
    # ceil(in flight / (0.7 x 10)), but within 10 % of the target nothing changes.
    ("concurrency", {}, [(0, 2, 20, 3)], [4]),
    ("concurrency", {}, [(0, 2, 15, 0)], [2]),
    ("concurrency", {"tolerance": 0}, [(0, 2, 15, 0)], [3]),
    ("concurrency", {"utilization": 0.5}, [(0, 2, 20, 0)], [4]),
    # At most 4 more or twice as many in 15 s.
    ("concurrency", {}, [(0, 1, 100, 0), (5, 5, 100, 0), (20, 5, 100, 0)], [5, 5, 10]),
    # It shrinks to the largest wish of the window.
    (
        "concurrency",
        {"window_s": 30},
        [(0, 4, 28, 0), (15, 4, 7, 0), (29, 4, 7, 0), (31, 4, 7, 0)],
        [4, 4, 4, 1],
    ),
    ("concurrency", {"window_s": 0}, [(0, 4, 0, 0)], [0]),
    ("concurrency", {}, [(0, 0, 0, 1)], [1]),
    # Knative: the mean of the stable window over 7, at most half is given up at a time.
    ("kpa", {}, [(0, 1, 7, 0), (30, 1, 9, 0), (59, 2, 9, 0)], [1, 2, 2]),
    ("kpa", {}, [(0, 1, 1, 0), (30, 8, 1, 0), (120, 8, 1, 0)], [1, 4, 4]),
    # It panics at twice the ready instances, and keeps the largest wish for a stable window after that.
    (
        "kpa",
        {},
        [(0, 1, 0, 0), (10, 1, 14, 0), (12, 2, 40, 0), (40, 6, 7, 0), (72, 6, 7, 0), (101, 6, 7, 0)],
        [1, 2, 4, 4, 4, 3],
    ),
    # With more than one instance it begins in panic: it has no history.
    ("kpa", {}, [(0, 4, 0, 0), (30, 4, 0, 0), (61, 4, 0, 0)], [4, 4, 2]),
    # The last instance stays for the grace period.
    ("kpa", {}, [(0, 1, 1, 0), (61, 1, 0, 0), (80, 1, 0, 0), (91, 1, 0, 0)], [1, 1, 1, 0]),
    ("kpa", {"max_scale_up_rate": 2}, [(0, 1, 100, 0)], [2]),
    ("kpa", {"scale_down_delay_s": 100}, [(0, 1, 14, 0), (61, 2, 0, 0), (101, 2, 0, 0)], [2, 2, 1]),
    ("kpa", {}, [(0, 0, 0, 1)], [1]),
]


@pytest.mark.parametrize(("name", "settings", "rows", "wanted"), CASES)
def test_what_it_wants(name, settings, rows, wanted):
    assert decisions(name, [seen(*row) for row in rows], **settings) == wanted


def test_two_pools_of_a_model_share_its_queue_by_what_they_take():
    pools = [pool("p", max_instances=3), pool("q", max_instances=1)]
    scaler = create("concurrency", pools, {"utilization": 1.0})
    found = seen(0, 1, 10, 80)
    observation = type(found)(0, 15, {**found.pools, "q": found.pools["p"]}, found.models)
    assert scaler.desired(observation) == {"p": 3, "q": 1}  # 70 and 30 requests: 7 and 3, within the bounds


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cpu", {}, "unknown scaler 'cpu' (known: queue, concurrency, kpa"),
        ("kpa", {"speed": 1}, "scaler kpa: no setting 'speed' (it has: utilization, stable_window_s, "),
        ("kpa", {"stable_window_s": -5}, "stable_window_s: expected a number from 0 to 1e+09, not -5"),
        ("none", {"instances": 2.5}, "instances: expected a whole number, not 2.5"),
        ("queue", {"step": "2"}, "step: expected a number from 0 to 1e+09, not '2'"),
        ("concurrency", {"utilization": nan}, "utilization: expected a number"),
        ("headway", {"miss_step": 1.1e9}, "miss_step: expected a number from 0 to 1e+09, not 1100000000.0"),
        ("queue", {"step": 0}, "step at least 1"),
        ("concurrency", {"utilization": 0}, "above 0"),
        ("headway", {"day_s": 0}, "day_s and persistence_s must be above 0"),
        ("headway", {"persistence_s": 0}, "day_s and persistence_s must be above 0"),
    ],
)
def test_wrong_settings(name, settings, message):
    with pytest.raises(ValueError, match=r".*") as error:
        create(name, [pool()], settings)
    assert message in str(error.value)


@pytest.mark.parametrize("value", [1e-9, 1e9])
@pytest.mark.parametrize(
    ("name", "setting"), [(name, each.name) for name, (_, own) in SCALERS.items() for each in fields(own)]
)
def test_no_setting_makes_a_decision_fail(name, setting, value):
    try:
        scaler = create(name, [pool()], {setting: value})
    except ValueError:
        return  # it is refused, such as a share above 1
    for at in range(8):
        scaler.desired(seen(at * 15.0, at % 4, 10, at, arrivals=60, answers=60, misses=60 * (at % 2)))


def test_a_whole_number_may_be_written_as_a_fraction():
    assert create("none", [pool()], {"instances": 2.0}).desired(seen(0, 1, 0, 1)) == {"p": 2}
