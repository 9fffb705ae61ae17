"""`clusters_rr`: clusters of prompts, then round robin (Avengers-Pro, arXiv 2508.12631).

The quality and answer length of each model are those of the prompt's nearest clusters. Avengers-Pro weights quality
against cost by hand. Here the weight is a price: it picks the least cost - price x quality, and the price holds the mean
estimated quality of the scope's recent requests at the target. The model's instances follow in turn. Ties: the cheaper
model, then its name.
"""

from __future__ import annotations

from policies.settings import PolicySettings
from policies.text_picking import PricedPicker


def clusters_rr(settings: PolicySettings) -> PricedPicker:
    """See the module's docstring."""
    return PricedPicker("clusters_rr", "clusters", settings)
