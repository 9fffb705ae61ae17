"""`eccos_r_rr`: ECCOS-R, then round robin (arXiv 2502.20576).

As `eccos_rr`, but capability and length are those of the 16 most alike prompts that were seen, nothing trained. A
model without neighbours has its mean length and quality (in public code it has length 0 and looks cheap).
"""

from __future__ import annotations

from policies.eccos_rr import Eccos
from policies.settings import PolicySettings


def eccos_r_rr(settings: PolicySettings) -> Eccos:
    """See the module's docstring."""
    return Eccos("eccos_r_rr", "eccos_r", settings)
