"""The fast estimate of a placement: requests as jobs of a fixed time on the group that is free first.

A group takes as long for a request as an engine that is full takes on average (`engine_rate`), with batches so small that
the TPOT is kept. A request is in time if its turn comes before its TTFT, or early enough for its end-to-end target.
What the estimate finds good is simulated afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from statistics import fmean, median

from benchmarks.planning.bound import GpuSeconds, GpuTime
from benchmarks.planning.problem import PlanningProblem
from benchmarks.simulator import Arrival
from benchmarks.workloads.format import PREFIX_BLOCK_TOKENS
from policies.placement.candidates import every_shape
from policies.placement.engine_rate import least_busy_s, requests_per_s
from policies.placement.outcomes import Aims, Evaluator, Overheads
from policies.placement.simulation import Arrivals
from policies.placement.types import Pool, Shape
from router.core.profile import EngineProfile

#: How long a request without a TTFT and an end-to-end target may wait.
_PATIENT_S = 60.0
#: The time of a request on a group that cannot serve it in time.
_NEVER_S = 1e9
_NO_OVERHEADS = Overheads(per_stage=0.0, request_s=0.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when it comes, its lengths, and its targets in s. `fresh_tokens` are those of the prompt that no earlier
    prompt began with, `output_tokens` the answer's by the place of each model that it accepts. `due_s` after it comes its
    answer ends at the latest: by its targets, or because the gateway gives it up."""

    arrival_s: float
    prompt_tokens: int
    fresh_tokens: int
    output_tokens: Mapping[int, int]
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    due_s: float

    @property
    def models(self) -> tuple[int, ...]:
        return tuple(self.output_tokens)

    @property
    def has_target(self) -> bool:
        return any(each is not None for each in (self.ttft_s, self.tpot_s, self.e2e_s))


def asked(arrivals: Sequence[Arrival], contexts: Mapping[str, int | None]) -> list[Asked]:
    """The simulator's arrivals, with models as places in `contexts`, which has the context of each (None: any). A prompt that no
    context of its models holds goes to the first fallback that does; if none does it is refused, and is not in attainment. An
    answer ends where the context is full."""
    places = {name: place for place, name in enumerate(contexts)}
    found = []
    seen: set[int] = set()
    for each in arrivals:
        request, slo = each.request, each.request.slo
        repeated = sum(1 for block in each.prefix_hashes if block in seen)
        seen.update(each.prefix_hashes)
        prompt_tokens = request.prompt_tokens
        fresh_tokens = max(1, prompt_tokens - repeated * PREFIX_BLOCK_TOKENS)
        output_tokens: dict[int, int] = {}
        for models in (request.models, *((name,) for name in request.fallbacks)):
            output_tokens = output_tokens or {
                places[name]: each.output_tokens[name]
                if most is None
                else min(each.output_tokens[name], most - prompt_tokens)
                for name in models
                if (most := contexts[name]) is None or prompt_tokens < most
            }
        if output_tokens:
            targets = (None, None, None) if slo is None else (slo.ttft_s, slo.tpot_s, slo.e2e_s)
            ttft_s, tpot_s, e2e_s = (inf if each is None else each for each in targets)
            answer_s = ttft_s + max(output_tokens.values()) * tpot_s
            due_s = min(e2e_s, answer_s, request.expires_at - request.arrived_at)
            lengths = prompt_tokens, fresh_tokens, output_tokens
            found.append(Asked(request.arrived_at, *lengths, *targets, due_s))
    return found


@dataclass(frozen=True)
class Estimate:
    """Of `requests` (by arrival) on a problem's cluster."""

    problem: PlanningProblem
    requests: Sequence[Asked]

    def evaluator(self, chosen: Sequence[int], aims: Aims, multiple: float = 1.0) -> Evaluator:
        """`chosen`: the model that each request takes. `multiple`: how many times as fast requests come."""
        arrivals = Arrivals(
            [each.arrival_s / multiple for each in self.requests],
            chosen,
            [self._patience_s(each, model) for each, model in zip(self.requests, chosen, strict=True)],
            len(self.problem.models),
        )
        return Evaluator(arrivals, self.stage_s, _NO_OVERHEADS, aims)

    def stage_s(self, model: int, shape: Shape) -> float:
        """The time of a request on one stage."""
        profile = self.problem.profile(model, shape)
        if profile is None:
            return _NEVER_S
        prompt_tokens, output_tokens, ttft_s, tpot_s = self._means[model]
        if profile.prefill_s(round(prompt_tokens)) > ttft_s:
            return _NEVER_S
        seats = self.problem.seats(model, profile)
        rate = requests_per_s(profile, prompt_tokens, output_tokens, seats, tpot_s)
        return 1 / rate if rate else _NEVER_S

    def choices(self) -> list[list[int]]:
        """Ways to choose a model for each request: those that accept several take them in turn, or one of them always."""
        flexible = sorted({model for each in self.requests if len(each.models) > 1 for model in each.models})
        in_turn = [each.models[place % len(each.models)] for place, each in enumerate(self.requests)]
        always = [
            [
                model if model in each.models else other
                for each, other in zip(self.requests, in_turn, strict=True)
            ]
            for model in flexible
        ]
        return [in_turn, *always]

    def bound(self) -> GpuTime:
        """What limits every placement. Requests that accept the same models are one kind of request. Those without a target may
        wait for the others."""
        pools = self.problem.cluster.pools
        kinds: dict[tuple[int, ...], list[Asked]] = {}
        counted = [each for each in self.requests if each.has_target]
        for each in counted:
            kinds.setdefault(each.models, []).append(each)
        return GpuTime(
            [len(own) for own in kinds.values()],
            [[self._least(own, models, pool) for pool in pools] for models, own in kinds.items()],
            [pool.gpus for pool in pools],
            [pool.kind.usd_per_hour or 0.0 for pool in pools],
            self.requests[-1].arrival_s - self.requests[0].arrival_s,
            GpuSeconds(
                max((each.ttft_s or 0.0 for each in counted), default=0.0),
                max((each.due_s for each in counted), default=0.0),
            ),
        )

    def _least(self, requests: Sequence[Asked], models: Sequence[int], pool: Pool) -> GpuSeconds | None:
        """The least mean GPU time of these requests on a pool's GPUs; None if no group of them can keep the targets of any."""
        found = [
            (shape.gpus, profile, model)
            for model in models
            for shape in every_shape(pool)
            if (profile := self.problem.profile(model, shape)) is not None
            and any(_can_be_met(profile, each, model) for each in requests)
        ]
        if not found:
            return None

        def prompt_s(profile: EngineProfile, each: Asked, model: int) -> float:
            seats = self.problem.seats(model, profile)
            return 0.0 if each.ttft_s is None else least_busy_s(profile, each.fresh_tokens, 0, seats)

        def total_s(profile: EngineProfile, each: Asked, model: int) -> float:
            seats = self.problem.seats(model, profile)
            return least_busy_s(profile, each.fresh_tokens, each.output_tokens[model], seats)

        return GpuSeconds(
            *(
                min(
                    gpus * fmean(of(profile, each, model) for each in requests)
                    for gpus, profile, model in found
                )
                for of in (prompt_s, total_s)
            )
        )

    def _patience_s(self, request: Asked, model: int) -> float:
        """How long it may wait for its turn."""
        limits = [_PATIENT_S] if request.ttft_s is None else [request.ttft_s]
        if request.e2e_s is not None:
            limits.append(request.e2e_s - request.output_tokens[model] * self._fastest_step_s[model])
        return min(limits)

    @cached_property
    def _means(self) -> list[tuple[float, float, float, float]]:
        """Prompt and output tokens, TTFT and TPOT (infinite without) of each model's requests."""
        found = []
        for model in range(len(self.problem.models)):
            own = [each for each in self.requests if model in each.models] or list(self.requests)
            ttft_s = [each.ttft_s for each in own if each.ttft_s is not None]
            tpot_s = [each.tpot_s for each in own if each.tpot_s is not None]
            found.append(
                (
                    fmean(each.prompt_tokens for each in own),
                    fmean(each.output_tokens.get(model, max(each.output_tokens.values())) for each in own),
                    median(ttft_s) if ttft_s else inf,
                    median(tpot_s) if tpot_s else inf,
                )
            )
        return found

    @cached_property
    def _fastest_step_s(self) -> list[float]:
        """The least time of a step with one sequence, by model."""
        return [
            min(
                (
                    profile.step_s(0, 1, 0.0)
                    for pool in self.problem.cluster.pools
                    for shape in every_shape(pool)
                    if (profile := self.problem.profile(model, shape)) is not None
                ),
                default=0.0,
            )
            for model in range(len(self.problem.models))
        ]


def _can_be_met(profile: EngineProfile, request: Asked, model: int) -> bool:
    """Whether its targets are kept at least where nothing else runs. An answer of one token has no TPOT."""
    steps, step_s = request.output_tokens[model] - 1, profile.step_s(0, 1, 0.0)
    prompt_s = profile.prefill_s(request.fresh_tokens)
    return (
        prompt_s <= (inf if request.ttft_s is None else request.ttft_s)
        and (request.tpot_s is None or not steps or step_s <= request.tpot_s)
        and prompt_s + steps * step_s <= (inf if request.e2e_s is None else request.e2e_s)
    )
