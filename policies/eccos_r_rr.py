"""`eccos_r_rr`: ECCOS-R, then round robin (arXiv 2502.20576).

Like `eccos_rr`, but capability and length are those of the 16 most similar prompts seen; nothing is trained. A model
without neighbours gets its mean length and quality. (In the public code it gets length 0 and looks cheap.)
"""

from __future__ import annotations

from policies.eccos_rr import Eccos
from policies.settings import PolicySettings


def eccos_r_rr(settings: PolicySettings) -> Eccos:
    """See the module's docstring."""
    return Eccos("eccos_r_rr", "eccos_r", settings)
