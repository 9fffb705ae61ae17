"""`logistic_rr`: one logistic regression for each model, then round robin.

Logistic regression predicts the quality and ridge regression the answer length, from the encoder's vector of the prompt.
It picks the least cost - price x quality; the price holds the mean estimated quality of the scope's recent requests at
the target. The model's instances follow in turn. Ties: the cheaper model, then its name.
"""

from __future__ import annotations

from policies.settings import PolicySettings
from policies.text_picking import PricedPicker


def logistic_rr(settings: PolicySettings) -> PricedPicker:
    """See the module's docstring."""
    return PricedPicker("logistic_rr", "logistic", settings)
