"""Figures over passes, ratios, and what is said when a figure must not be trusted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from benchmarks.overhead import report
from benchmarks.overhead.plan import Result, Spread
from benchmarks.overhead.processes import Cores
from benchmarks.overhead.scenarios import SCENARIOS, Measured, run_count

GOOD = Result(
    window_s=2.0,
    answers=1000,
    chunks=0,
    started=1200,
    completed=1200,
    incomplete=0,
    held=0,
    target_cpu_s=0.5,
    bench_cpu_s=0.2,
    load_cpu_s=0.2,
    foreign_cores=0.0,
    rss_mib=None,
    pss_mib=None,
)
TWO = Cores.of([0, 1])


def took(p50_us: float, **changes: Any) -> Result:
    return replace(GOOD, latency=Spread(1000, p50_us, p50_us, 2 * p50_us, 3 * p50_us), **changes)


def row(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(name)]
    return line.removeprefix(name).split()


def test_medians_differences_and_ratios() -> None:
    results = {
        "direct": [took(100), took(110), took(300)],
        "nginx": [took(200), took(200), took(200)],
        "headway": [took(500), took(510), took(400)],
    }
    text = report.text(Measured(TWO, {"json": results}, {}))
    assert row(text, "p50 us") == ["110", "(100-300)", "200", "500", "(400-510)", "4.55", "2.50"]
    # Pass by pass: 400, 400, 100 for the gateway; 100, 90, -100 for nginx.
    assert row(text, "added p50 us") == ["-", "90.0", "(-100-100)", "400", "(100-400)", "-", "4.44"]
    assert row(text, "CPU us a request") == ["500", "500", "500", "1.00", "1.00"]
    assert "!" not in text


def test_without_direct_nothing_is_called_added() -> None:
    text = report.text(Measured(TWO, {"json": {"headway": [took(500)]}}, {"nginx": "nginx is not installed"}))
    assert "added p50" not in text
    assert "without nginx: nginx is not installed" in text


def test_failures_are_listed_by_kind() -> None:
    bad = took(100, completed=1194, incomplete=1, errors={"connection lost": 3, "status 503": 2})
    [note] = report.notes({"headway": [GOOD, bad]}, TWO)
    assert note == "! headway: 6 of 2400 answers failed (connection lost: 3, status 503: 2, not ended: 1)"


def test_who_saturates_first_is_said() -> None:
    busy = replace(GOOD, bench_cpu_s=1.0, load_cpu_s=0.9)
    direct, gateway = report.notes({"direct": [busy], "headway": [busy]}, TWO)
    assert direct.startswith("! direct is the ceiling of this bench")
    assert gateway == "! headway could do more: the engine and the load generator were busy 95% of their core"
    assert report.notes({"headway": [busy]}, Cores.of([0, 1, 2])) == []  # each has a core of its own


def test_disturbances_are_said() -> None:
    late = replace(GOOD, foreign_cores=0.7, lag=Spread(10, 900.0, 900.0, 2500.0, 3000.0))
    others, lag = report.notes({"nginx": [late]}, TWO)
    assert "other programs used 0.7 cores" in others
    assert "sent up to 2,500 us late" in lag


def test_json_holds_figures_and_every_pass() -> None:
    results = {"direct": [took(100)], "headway": [took(350)]}
    made = orjson.loads(orjson.dumps(report.as_json(Measured(TWO, {"json": results}, {}), {"passes": 1})))
    scenario = made["scenarios"]["json"]
    assert scenario["figures"]["added p50 us"] == {
        "headway": {"median": 250.0, "least": 250.0, "most": 250.0}
    }
    assert scenario["passes"]["direct"][0]["latency"]["p50_us"] == 100
    assert made["settings"] == {"passes": 1}


def test_cores_are_shared_out() -> None:
    assert Cores.of([3]) == Cores()
    assert Cores(frozenset({0}), frozenset({1}), frozenset({1})) == TWO
    assert TWO.shared
    assert Cores.of([4, 5, 6, 7]) == Cores(frozenset({4}), frozenset({5}), frozenset({6}))
    assert Cores().text() == "processes not pinned"


def test_runs_are_counted() -> None:
    every = list(SCENARIOS.values())
    assert run_count(every, ("direct", "headway"), 2) == 2 * (4 + 6)


def test_what_the_gateway_is_judged_by_stands_in_units_of_its_peers() -> None:
    held = replace(GOOD, pss_mib=100.0)
    results = {
        "json-max": {
            "nginx": [GOOD],
            "headway": [replace(GOOD, answers=250)],
            "slo": [replace(GOOD, answers=100)],
        },
        "idle": {"nginx": [replace(held, pss_mib=10.0)], "headway": [held]},
    }
    text = report.text(Measured(TWO, results, {}))
    assert row(text, "in units of") == ["nginx"]
    assert row(text, "json-max: requests/s, headway") == ["0.25"]
    assert row(text, "json-max: requests/s, slo") == ["0.10"]
    assert row(text, "idle: PSS MiB, headway") == ["10.00"]
