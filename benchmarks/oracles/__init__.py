"""Oracles: how far a policy is from what was possible at all. See docs/oracles.md.

    found = oracles(fleet, arrivals, {"slo": result, ...}, effort="normal")

An upper bound that no schedule passes (`bound`), a schedule that a search with true lengths found
(`clairvoyant`), and the least cost of a mean quality (`quality_cost`). Needs scipy.
"""

from benchmarks.oracles.bound import goodput_upper_bound
from benchmarks.oracles.clairvoyant import Effort, search
from benchmarks.oracles.quality_cost import Frontier, frontier
from benchmarks.oracles.report import EFFORTS, Efforts, OracleFault, oracles, schedule_of
from benchmarks.oracles.schedule import Job, serve
from benchmarks.oracles.truth import Truth

__all__ = [
    "EFFORTS",
    "Effort",
    "Efforts",
    "Frontier",
    "Job",
    "OracleFault",
    "Truth",
    "frontier",
    "goodput_upper_bound",
    "oracles",
    "schedule_of",
    "search",
    "serve",
]
