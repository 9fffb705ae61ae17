"""Reference scenarios: a fleet, a workload, rates and policies under a name, so that results compare. See docs/scenarios.md."""

from benchmarks.scenarios.reading import load_scenario, names
from benchmarks.scenarios.scenario import Loss, Scenario

__all__ = ["Loss", "Scenario", "load_scenario", "names"]
