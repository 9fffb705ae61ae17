"""What is expected of a candidate: TTFT, TPOT, E2E, output length, price, and P(an SLO is missed).

`OnlinePredictor` is the one that needs no training: queue state and engine profile give a physical
estimate, and its error is learned online for each instance and model.
"""

from predictors.serving import OnlinePredictor

__all__ = ["OnlinePredictor"]
