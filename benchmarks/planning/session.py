"""Plans for the cluster as it is, and for what it may become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backends.engine import profiles
from benchmarks.compare.pool import Processes
from benchmarks.planning.estimate import Estimate
from benchmarks.planning.files import ClusterConfig
from benchmarks.planning.fleet import fleet_data
from benchmarks.planning.from_fleet import present
from benchmarks.planning.inputs import PlanningInputs
from benchmarks.planning.planner import OnProgress, Plan, Planner
from benchmarks.planning.problem import PlanningProblem
from benchmarks.planning.reasons import reasons
from benchmarks.planning.report import plan_data
from benchmarks.planning.scoring import DrawnDemand, Scorer
from benchmarks.planning.search import CandidateSearch, PlanningAims
from benchmarks.planning.throughput import ThroughputPlanner
from benchmarks.planning.what_if import changed
from policies.placement.packing import pack


class Infeasible(Exception):
    """No placement is possible: what was asked for, and the reasons, one line each."""

    def __init__(self, head: str, reasons: Sequence[str] = ()) -> None:
        note = [profiles.USABLE] if any(" usable" in each for each in reasons) else []
        super().__init__("\n  ".join([head, *reasons, *note]))


@dataclass(frozen=True)
class Session:
    """`aims` are those of the cluster as it is. `time_s` is for each cluster."""

    inputs: PlanningInputs
    aims: PlanningAims
    draws: DrawnDemand
    processes: Processes
    time_s: float
    seed: int
    on_progress: OnProgress

    def run(self, changes: Sequence[str]) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """The result as data, and the fleet file of the best plan. Raises Infeasible and WorkloadError."""
        inputs = self.inputs
        clusters = {change: changed(inputs.cluster, change) for change in changes}
        planner, plans = self._plans(inputs.cluster)
        problem = planner.search.estimate.problem
        data = {
            "headway_plan": 1,
            "objective": self.aims.objective,
            "target": self.aims.target,
            "policy": inputs.policy,
            "budget_usd_per_hour": self.aims.budget_usd_per_hour,
            "workload": inputs.demand.header.as_dict(),
            "cluster": inputs.cluster.model_dump(mode="json"),
            "bound": self._bound(planner.search.estimate),
            "span_s": (inputs.requests[-1].arrival_s - inputs.requests[0].arrival_s) / plans[0].multiple,
            "simulations": planner.scorer.simulations,
            "plans": [plan_data(problem, plan) for plan in plans],
            "present": self._present(planner, plans[0]),
            "what_if": [self._what_if(change, cluster, plans[0]) for change, cluster in clusters.items()],
        }
        return data, fleet_data(problem, plans[0].placement, inputs.base)

    def _plans(self, cluster: ClusterConfig) -> tuple[Planner, list[Plan]]:
        """Raises Infeasible."""
        planner = self._planner(cluster)
        plans = planner.plans()
        if not plans:
            problem, budget = planner.search.estimate.problem, self.aims.budget_usd_per_hour
            cheapest = pack(problem.models, problem.cluster)
            assert cheapest is not None  # noqa: S101 (else there are reasons)
            raise Infeasible(
                f"no placement of all models costs at most {budget:g} USD an hour; "
                f"the cheapest costs {cheapest.usd_per_hour:.9g}"
            )
        return planner, plans

    def _planner(self, cluster: ClusterConfig) -> Planner:
        inputs = self.inputs
        problem = PlanningProblem(cluster, inputs.models, inputs.longest_tokens).with_unlike_groups()
        if found := reasons(problem):
            raise Infeasible("no placement is possible", found)
        estimate = Estimate(problem, inputs.requests)
        scorer = Scorer(problem, self.draws, inputs.policy, inputs.slo, inputs.base, self.processes)
        known = [] if inputs.fleet is None else [present(problem, inputs.fleet)]
        if self.aims.budget_usd_per_hour is not None:  # it may leave little but the cheapest
            known.append(pack(problem.models, problem.cluster))
        search = CandidateSearch(estimate, self.aims, self.seed)
        placements = [each for each in known if each is not None]
        common = (search, scorer, self.aims, self.time_s, self.seed, placements, self.on_progress)
        if self.aims.objective == "throughput":
            return ThroughputPlanner(*common, bound=estimate.bound().multiple(self.aims.target) or 1.0)
        return Planner(*common)

    def _bound(self, estimate: Estimate) -> dict[str, float | None]:
        bound, target = estimate.bound(), self.aims.target
        if self.aims.objective == "throughput":
            return {"multiple": bound.multiple(target)}
        if self.aims.objective == "cost":
            return {"usd_per_hour": bound.usd(target)}
        return {"attainment": bound.attainment()}

    def _present(self, planner: Planner, best: Plan) -> dict[str, Any] | None:
        """The score of the fleet as it runs, on the draws that scored the plans; None if it has an instance without an
        engine profile, such as one of a cloud's models."""
        fleet = self.inputs.fleet
        if fleet is None or not fleet.instances:
            return None
        names = [each.profile_name(model) for each in fleet.instances for model in each.serves]
        if any(name is None or profiles.find(name) is None for name in names):
            return None
        seeds = range(self.seed + 1, self.seed + 1 + best.score.draws)
        (score,) = planner.scorer.fleet_scores([fleet], seeds, best.multiple)
        prices = [each.usd_per_hour for each in fleet.instances]
        usd = None if None in prices else sum(price or 0.0 for price in prices)
        return {"usd_per_hour": usd, "multiple": best.multiple, **asdict(score)}

    def _what_if(self, change: str, cluster: ClusterConfig, best: Plan) -> dict[str, Any]:
        """The best plan of a changed cluster, and its difference to the best one of the cluster as it is."""
        try:
            planner, (plan, *_) = self._plans(cluster)
        except Infeasible as error:
            return {"change": change, "infeasible": str(error)}
        return {
            "change": change,
            **plan_data(planner.search.estimate.problem, plan),
            "more_attainment": plan.score.attainment - best.score.attainment,
            "more_usd_per_hour": round(plan.usd_per_hour - best.usd_per_hour, 9),
            "more_multiple": plan.multiple - best.multiple,
        }
