"""`logistic_rr`: a logistic regression for each model, then round robin.

Quality by logistic regression and length by ridge regression, on the encoder's vector of the prompt. Least cost -
price x quality; the price holds the mean estimated quality of the scope's recent requests at its target. Then the
model's instances in turn. Ties: the cheaper model, then its name.
"""

from __future__ import annotations

from policies.settings import PolicySettings
from policies.text_picking import PricedPicker


def logistic_rr(settings: PolicySettings) -> PricedPicker:
    """See the module's docstring."""
    return PricedPicker("logistic_rr", "logistic", settings)
