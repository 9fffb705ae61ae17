"""`knn_rr`: k nearest neighbours, then round robin.

The quality and answer length of each model are those of the most similar prompts in the artifact. It picks the least
cost - price x quality; the price holds the mean estimated quality of the scope's recent requests at the target. The
model's instances follow in turn. Ties: the cheaper model, then its name. kNN routers are strong in distribution and
brittle outside it (RouterArena, arXiv 2510.00202).
"""

from __future__ import annotations

from policies.settings import PolicySettings
from policies.text_picking import PricedPicker


def knn_rr(settings: PolicySettings) -> PricedPicker:
    """See the module's docstring."""
    return PricedPicker("knn_rr", "knn", settings)
