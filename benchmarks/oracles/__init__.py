"""Oracles: how far a policy is from what was possible at all. See docs/oracles.md.

    found = oracles(fleet, arrivals, {"slo": result, ...}, effort="normal")

An upper bound that no schedule passes (`bound`), a schedule that a search with true lengths found
(`clairvoyant`), and the least cost of a mean quality (`quality_cost`). Needs scipy.
"""

from benchmarks.oracles.bound import UpperBound, goodput_upper_bound
from benchmarks.oracles.clairvoyant import Effort, Found, search
from benchmarks.oracles.quality_cost import Frontier, FrontierPoint, frontier
from benchmarks.oracles.report import (
    EFFORTS,
    Achieved,
    Efforts,
    OracleFault,
    Oracles,
    oracles,
    schedule_of,
)
from benchmarks.oracles.schedule import Job, serve
from benchmarks.oracles.truth import KnownAttempt, Truth

__all__ = [
    "EFFORTS",
    "Achieved",
    "Effort",
    "Efforts",
    "Found",
    "Frontier",
    "FrontierPoint",
    "Job",
    "KnownAttempt",
    "OracleFault",
    "Oracles",
    "Truth",
    "UpperBound",
    "frontier",
    "goodput_upper_bound",
    "oracles",
    "schedule_of",
    "search",
    "serve",
]
