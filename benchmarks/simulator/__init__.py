"""The simulator: any policy over any workload and fleet on virtual time, with the code that serves.

fleet = open_fleet(load_fleet("fleets/mixed-8b.yaml"))
result = simulate(fleet, arrivals(read(path), fleet, policy="slo"))
"""

from benchmarks.simulator.arrivals import Arrival, arrivals, check
from benchmarks.simulator.fleet import Fleet, open_fleet
from benchmarks.simulator.outcomes import OUTCOMES, Result
from benchmarks.simulator.simulation import InstanceLoss, Simulation, simulate

__all__ = [
    "OUTCOMES",
    "Arrival",
    "Fleet",
    "InstanceLoss",
    "Result",
    "Simulation",
    "arrivals",
    "check",
    "open_fleet",
    "simulate",
]
