"""`clusters_rr`: clusters of prompts, then round robin.

What each model is good for, and how long it answers, is that of the prompt's nearest clusters (Avengers-Pro,
arXiv 2508.12631). Avengers-Pro weighs the two by hand; here the weight is a price: least cost - price x quality,
where the price holds the mean estimated quality of the scope's recent requests at its target. Then the model's
instances in turn. Ties: the cheaper model, then its name.
"""

from __future__ import annotations

from policies.settings import PolicySettings
from policies.text_picking import PricedPicker


def clusters_rr(settings: PolicySettings) -> PricedPicker:
    """See the module's docstring."""
    return PricedPicker("clusters_rr", "clusters", settings)
