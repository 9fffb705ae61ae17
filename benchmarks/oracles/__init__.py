"""Oracles: how far a policy is from what was possible at all. See docs/oracles.md. Needs scipy."""

from benchmarks.oracles.clairvoyant import Effort
from benchmarks.oracles.report import EFFORTS, Efforts, oracles

__all__ = ["EFFORTS", "Effort", "Efforts", "oracles"]
