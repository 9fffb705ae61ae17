"""`least_load`: the instance with the fewest sequences at it now ("least requests", as in Envoy or nginx).

Load is `Instance.running`: the engine's last report corrected by our own dispatches and completions since,
so two decisions between reports do not chase the same idle instance. Ties are drawn evenly (by the
request's seed when it has one): breaking them by name would herd a quiet fleet onto its first name.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from policies.picking import least_at_random
from router.core.interfaces import Choice, Option
from router.core.types import Request


class LeastLoad:
    """See the module's docstring. The score is the number of sequences."""

    name = "least_load"
    predicts = False

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        loads = [option.instance.running for option in options]
        return least_at_random(request, options, loads, rng, "as much or more running")

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Nothing to count: the scheduler counts what is in flight."""
