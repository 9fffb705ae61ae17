"""The levels of the quantiles by which the latency model describes a distribution of log errors."""

from __future__ import annotations

from statistics import NormalDist

TAUS = (0.1, 0.5, 0.9, 0.95, 0.99)
#: The positions of some of them.
P10, P50, P90, P95 = (TAUS.index(tau) for tau in (0.1, 0.5, 0.9, 0.95))
#: Normal scores of TAUS.
SCORES = tuple(NormalDist().inv_cdf(tau) for tau in TAUS)
