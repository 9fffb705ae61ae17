"""`least_load`: the instance with the fewest sequences ("least requests" in Envoy and nginx).

Load is `Instance.running`: the engine's last report, corrected by our own dispatches and completions since then. So two
decisions between reports do not both go to the same idle instance. Ties are drawn evenly, by `request.seed` if it is
set: a tie-break by name would send all requests of a quiet fleet to its first name.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.picking import least_at_random
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request


class LeastLoad(Policy):
    """See the module's docstring. The score is the number of sequences."""

    name = "least_load"
    predicts = False

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        loads = [option.instance.running for option in options]
        return least_at_random(request, options, loads, rng, "as many or more sequences")
