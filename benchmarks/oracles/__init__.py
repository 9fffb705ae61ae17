"""Oracles: how far a policy is from what was possible at all. See docs/oracles.md. Needs scipy."""

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
