"""What each request would truly be on each candidate: the ground that all oracles stand on ("Possible attempts" in
docs/oracles.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.simulator import Arrival, Fleet, InstanceLoss
from router.core.eligibility import Eligible, eligible
from router.core.money.account import RequestMoney
from router.core.state import Instance
from router.core.types import OUTSIDE_ATTAINMENT, Candidate, Request


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    """A request on one candidate, with true lengths: `prompt_tokens` and `output_tokens` are what the engine computes. An
    Ollama cuts a prompt that is too long (`cut_prompt`), an engine's context ends an answer. `quality` is None where the
    workload does not have it, or when the money cap cuts the answer. `usual` is false for a candidate that the scheduler
    offers only when others are full or have failed."""

    instance: int  # place in the fleet file
    model: str
    prompt_tokens: int
    output_tokens: int
    cut_prompt: bool
    cost_usd: float
    quality: float | None
    usual: bool


class Truth:
    """All attempts that are possible, by request in the order of `arrivals`."""

    def __init__(
        self, fleet: Fleet, arrivals: Sequence[Arrival], losses: Sequence[InstanceLoss] = ()
    ) -> None:
        self.fleet = fleet
        self.arrivals = arrivals
        self._losses = sorted(losses, key=lambda loss: loss.at_s)
        self._serving = fleet.scheduler(0).fleet
        by_name = self._serving.instances
        self.instances: tuple[Instance, ...] = tuple(by_name[name] for name in fleet.names)
        self._place = {name: place for place, name in enumerate(fleet.names)}
        self._engines = fleet.engines()
        self.attempts: tuple[tuple[KnownAttempt, ...], ...] = tuple(self._of(each) for each in arrivals)

    def losses(self, instance: int) -> list[InstanceLoss]:
        """When the instance at this place is lost, in order."""
        return [loss for loss in self._losses if loss.instance == self.fleet.names[instance]]

    def offered(self, index: int) -> bool:
        """Whether a request counts in attainment: it has an SLO, and is not refused as malformed (longer than
        every context, a quality that nobody has)."""
        request = self.arrivals[index].request
        if request.slo is None:
            return False
        if self.attempts[index]:
            return True
        refusal = self._eligible(request, request.models).refusal
        return refusal is not None and refusal.outcome not in OUTSIDE_ATTAINMENT

    def _of(self, arrival: Arrival) -> tuple[KnownAttempt, ...]:
        request = arrival.request
        usual: set[tuple[str, str]] = set()
        for models in (request.models, *((model,) for model in request.fallbacks)):
            usual = {(each.instance, each.model) for each in self._candidates(request, models)}
            if usual:
                break
        # The output asked for keeps nobody out for good: only while roomier candidates are free.
        unbound = replace(request, max_tokens=None)
        found = []
        for candidate in self._candidates(unbound, dict.fromkeys((*request.models, *request.fallbacks))):
            attempt = self._attempt(arrival, candidate, (candidate.instance, candidate.model) in usual)
            if attempt is not None:
                found.append(attempt)
        found.sort(key=lambda each: (each.instance, each.model))
        return tuple(found)

    def _eligible(self, request: Request, models: Iterable[str]) -> Eligible:
        roster = self._serving.roster(tuple(models))
        return eligible(request, models, roster, RequestMoney(request), frozenset(), request.arrived_at)

    def _candidates(self, request: Request, models: Iterable[str]) -> list[Candidate]:
        found = self._eligible(request, models)
        return [option.candidate for option in (*found.free, *found.busy)]

    def _attempt(self, arrival: Arrival, candidate: Candidate, usual: bool) -> KnownAttempt | None:
        request = arrival.request
        place = self._place[candidate.instance]
        instance = self.instances[place]
        wanted = arrival.output_tokens[candidate.model]
        bound = RequestMoney(request).output_bound(candidate)
        output = wanted if bound.max_tokens is None else min(wanted, bound.max_tokens)
        prompt, cut_prompt = request.prompt_tokens, False
        limit = self._engines[candidate.instance].limit_tokens(candidate.model)
        if instance.fixed_slots and prompt >= limit:
            # as `SimulatedEngine.submit` does it
            prompt, cut_prompt = max(1, limit - min(output, max(1, limit // 2))), True
        if limit - prompt < min(1, output):
            return None
        output = min(output, limit - prompt)
        cost_usd = candidate.price.cost_usd(request.prompt_tokens, output) if output else 0.0
        quality = None if bound.by_money and output < wanted else arrival.quality.get(candidate.model)
        return KnownAttempt(place, candidate.model, prompt, output, cut_prompt, cost_usd, quality, usual)
