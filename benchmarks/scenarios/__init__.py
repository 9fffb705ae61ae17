"""Reference scenarios: a fleet, a workload, rates and policies under a name, so that results compare. See docs/scenarios.md."""

from benchmarks.scenarios.scenario import USUAL_POLICIES, Loss, Scenario, load_scenario, names

__all__ = ["USUAL_POLICIES", "Loss", "Scenario", "load_scenario", "names"]
