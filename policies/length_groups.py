"""`length_groups`: long prompts to wide instances, short ones where they add least load.

A wide instance prefills a long prompt in less time, by its tensor degree or by a faster GPU. There is no fixed border between
lengths, and no fixed group. The policy takes the option of the least

    E[E2E] + added + later + P(miss) x allowed

- `added`: the delay to the sequences already there, as in `latency` (`policies.latency`).
- `later`: the delay to the prompts that will come while this one is prefilled. For x seconds of prefill that end t seconds
  from now, on an instance that gets r prompts a second and is busy with prefills for the share u of the time, it is

      3 x r / (1 - u) x x (t - x / 2)

  It grows with the square of x, so a long prompt costs most on a narrow instance, and where many short ones arrive. Short
  prompts use a wide instance while it is quiet, and go elsewhere as `r` and `u` grow there.
- `allowed`: the time that the SLO allows for the whole answer. So a miss costs as much as an answer that takes this time.

r and u are exponential averages over the requests that the policy placed. Without an engine profile `added` and `later` are 0.

If every option misses the SLO (P(miss) > 1 - epsilon) and the best one has prompts without a first token, the request is
deferred. Ties: instance, then model name. Deterministic.

`later` is the rise of the relative value of an M/G/1 queue, r / (2 (1 - u)) x ((w + x)^2 - w^2) for a backlog w: the first
step of policy iteration from arrivals that are split at random, with sizes that differ by queue (Hyytiä, Penttinen and Aalto,
European Journal of Operational Research 218, 2012). The factor 3 is Headway's own: decoding takes a part of the engine too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random

from policies.latency import p_misses, weighed_s
from policies.picking import Reasons, format_s, known, least
from router.core.interfaces import Choice, Option, Policy
from router.core.types import Request

#: Weight of the delay to later prompts. Of 0, 1, 3 and 6 it gives the least mean E2E in the full form of the simulated scenario
#: `unlike-widths`; in the small form 0, 1 and 3 differ little.
_LATER = 3.0
#: Of the averages of r and u.
_HORIZON_S = 60.0
#: u is no more than this.
_BUSIEST = 0.9
#: The averages of this many instances are kept. Pods come and go under new names.
_MOST_INSTANCES = 4096


@dataclass(slots=True)
class _Arrivals:
    """Prompts that were sent to one instance and the seconds of their prefills, each with a weight that falls with age."""

    prompts: float = 0.0
    work_s: float = 0.0
    updated_at: float = -inf

    def add(self, work_s: float, at_s: float) -> None:
        kept = self._kept(at_s)
        self.prompts = self.prompts * kept + 1.0
        self.work_s = self.work_s * kept + work_s
        self.updated_at = max(self.updated_at, at_s)

    def pressure(self, at_s: float) -> float:
        """r / (1 - u), a second."""
        share = self._kept(at_s) / _HORIZON_S
        return self.prompts * share / (1.0 - min(_BUSIEST, self.work_s * share))

    def _kept(self, at_s: float) -> float:
        return exp(min(0.0, self.updated_at - at_s) / _HORIZON_S)


class LengthGroups(Policy):
    """See the module's docstring. The score is the minimised time in seconds. `cached_tokens(request, instance)` is the number
    of prompt tokens that need no prefill there."""

    name = "length_groups"
    predicts = True

    def __init__(
        self, epsilon: float = 0.1, cached_tokens: Callable[[Request, str], float] | None = None
    ) -> None:
        self.epsilon = epsilon
        self._cached_tokens = cached_tokens
        self._arrivals: dict[str, _Arrivals] = {}  # by instance

    def choose(self, request: Request, options: Sequence[Option], rng: Random) -> Choice:
        misses = p_misses(options)
        allowed_s = _allowed_s(request, options)
        scores = [
            time_s + self._later_s(request, option) + miss * allowed_s
            for time_s, option, miss in zip(weighed_s(request, options, 0.0), options, misses, strict=True)
        ]
        index = least(options, range(len(options)), scores)
        lost = request.slo is not None and min(misses) > 1.0 - self.epsilon
        return Choice(
            index,
            known(scores),
            Reasons(len(options), index, lambda at: _why_not(scores[at], scores[index])),
            defer=lost and options[index].instance.awaiting_first_token > 0,
        )

    def placed(self, request: Request, options: Sequence[Option], choice: Choice) -> None:
        """Count the prompt among those of its instance."""
        option = options[choice.index]
        if len(self._arrivals) >= _MOST_INSTANCES and option.instance.name not in self._arrivals:
            self._arrivals.clear()  # older values than the horizon weigh little anyway
        arrivals = self._arrivals.setdefault(option.instance.name, _Arrivals())
        arrivals.add(self._prefill_s(request, option), request.arrived_at)

    def _later_s(self, request: Request, option: Option) -> float:
        """The delay to later prompts at the option's instance, weighted."""
        arrivals = self._arrivals.get(option.instance.name)
        if arrivals is None:
            return 0.0
        work_s = self._prefill_s(request, option)
        ends_s = (option.prediction.ttft_s_p50 if option.prediction else None) or 0.0
        return _LATER * arrivals.pressure(request.arrived_at) * work_s * (max(ends_s, work_s) - work_s / 2)

    def _prefill_s(self, request: Request, option: Option) -> float:
        """Of the prompt alone; 0 without a profile."""
        instance = option.instance
        profile = instance.profiles.get(option.candidate.model)
        if profile is None:
            return 0.0
        tokens = max(request.prompt_tokens, 1)
        cached = self._cached_tokens(request, instance.name) if self._cached_tokens and request.prefix else 0
        return profile.prefill_s(tokens, int(min(cached, tokens - 1))) / instance.speed


def _allowed_s(request: Request, options: Sequence[Option]) -> float:
    """How long the SLO lets the answer take in seconds, by its longest expected length; 0 without an SLO. A target that is not
    set allows nothing."""
    slo = request.slo
    if slo is None:
        return 0.0
    if slo.e2e_s is not None:
        return slo.e2e_s
    tokens = max((each.prediction.output_tokens_mean or 0.0) if each.prediction else 0.0 for each in options)
    return (slo.ttft_s or 0.0) + (slo.tpot_s or 0.0) * tokens


def _why_not(score_s: float, least_s: float) -> str:
    return (
        "slower, including the delay to other requests and the risk of a miss: "
        f"{format_s(score_s)}, against {format_s(least_s)}"
    )
