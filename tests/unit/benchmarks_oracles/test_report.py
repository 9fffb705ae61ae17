"""What a comparison gets: all oracles of one workload at one rate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.measures import attainment, offered_period_s
from benchmarks.oracles import EFFORTS, oracles, report
from benchmarks.oracles.bound import goodput_upper_bound
from benchmarks.oracles.clairvoyant import Effort
from benchmarks.oracles.report import Efforts, OracleFault
from benchmarks.oracles.truth import Truth
from benchmarks.simulator import OUTCOMES, InstanceLoss, simulate
from benchmarks.workloads.format import WorkloadError
from router.core.types import Slo
from tests.unit.benchmarks_oracles.cases import CRAMPED, INSTANCES, arrival, fleet, some, with_policy

BRIEF = Efforts(Effort(200), levels=3, part_requests=1000)


def test_keys_and_the_bracket() -> None:
    of = fleet(*INSTANCES[:2], profile=CRAMPED)
    arrivals = some(60, 8.0, seed=1)
    results = {name: simulate(of, with_policy(arrivals, name)) for name in ("round_robin", "latency", "slo")}
    found = oracles(of, arrivals, results, effort=BRIEF)
    assert json.loads(json.dumps(found)) == found
    achieved = found["clairvoyant"]
    period_s = offered_period_s([each.request.arrived_at for each in arrivals])
    best = 0.0
    for result in results.values():
        columns = result.columns
        rows = [
            (OUTCOMES[outcome], None if met == 2 else met == 1)
            for outcome, met in zip(columns["outcome"], columns["met"], strict=True)
        ]
        measured = attainment(rows, period_s)
        assert measured["offered_with_slo"] == achieved["offered"]
        best = max(best, measured["goodput_per_s"])
    assert best <= achieved["goodput_per_s"] <= found["goodput_upper_bound_per_s"]
    assert achieved["met"] == pytest.approx(achieved["attainment"] * achieved["offered"])
    assert achieved["attainment"] <= found["attainment_upper_bound"] <= 1
    assert achieved["improved"]
    assert achieved["iterations"] > 0
    (point,) = found["quality_cost"]
    assert point["quality"] == pytest.approx(0.5)


def test_no_search_where_a_policy_reaches_the_bound() -> None:
    of = fleet(INSTANCES[0])
    arrivals = [arrival(f"r{at}", float(at), slo=Slo(e2e_s=60.0)) for at in range(5)]
    found = oracles(of, arrivals, {"round_robin": simulate(of, arrivals)}, effort="quick")
    achieved = found["clairvoyant"]
    assert (found["bound_met"], achieved["met"], achieved["iterations"]) == (5, 5, 0)
    assert achieved["start"] == "round_robin"
    assert not achieved["improved"]


def test_who_knows_of_a_loss_is_ahead_of_the_policy() -> None:
    of = fleet(*INSTANCES[:2])
    arrivals = some(120, 5.0, seed=6)
    losses = [InstanceLoss("fast", 2.0, 3.0), InstanceLoss("fast-too", 9.0, 3.0)]
    result = simulate(of, arrivals, losses=losses)
    found = oracles(of, arrivals, {"round_robin": result}, effort=BRIEF, losses=losses)
    assert int((result.columns["met"] == 1).sum()) < found["clairvoyant"]["met"] <= found["bound_met"]


def test_without_slos_there_is_nothing_to_attain() -> None:
    of = fleet(INSTANCES[0])
    arrivals = [arrival(f"r{at}", float(at)) for at in range(3)]
    found = oracles(of, arrivals, {"round_robin": simulate(of, arrivals)}, effort="quick")
    assert found["attainment_upper_bound"] is None
    assert found["goodput_upper_bound_per_s"] is None
    assert found["clairvoyant"]["attainment"] is None


def test_wrong_input_is_one_clear_line() -> None:
    of = fleet(INSTANCES[0])
    arrivals = some(4, 5.0, seed=6)
    with pytest.raises(WorkloadError, match="unknown effort 'much'"):
        oracles(of, arrivals, {}, effort="much")
    with pytest.raises(WorkloadError, match="the run of slo has 3 requests, the workload 4"):
        oracles(of, arrivals, {"slo": simulate(of, arrivals[:3])}, effort="quick")


def test_efforts_rise() -> None:
    assert list(EFFORTS) == ["brief", "quick", "normal", "thorough"]
    tried = [each.search.evaluations for each in EFFORTS.values()]
    assert tried == sorted(set(tried))


@pytest.mark.parametrize(
    ("too_many", "who"), [("policy", "the run of round_robin"), ("search", "the clairvoy")]
)
def test_a_schedule_that_passes_the_bound_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, too_many: str, who: str
) -> None:
    of = fleet(INSTANCES[0])
    arrivals = [arrival(f"r{at}", float(at), slo=Slo(e2e_s=60.0)) for at in range(5)]
    most = goodput_upper_bound(Truth(of, arrivals))
    results = {"round_robin": simulate(of, arrivals)} if too_many == "policy" else {}
    monkeypatch.setattr(report, "goodput_upper_bound", lambda *_, **__: replace(most, met=4))
    with pytest.raises(
        OracleFault, match=f"{who}.* 5 requests and the upper bound is 4: a fault of this program"
    ):
        oracles(of, arrivals, results, effort="brief")
