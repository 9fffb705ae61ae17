"""Which candidates may serve a request, and the refusal if none may.

Permanent conditions are checked before temporary ones: engine capabilities, context length, quality, money, health, and
then a free slot. The first check that no candidate passes gives the reason of the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from router.compiled import compiled_init
from router.core.errors import Refusal, invalid_request
from router.core.money.account import OVER_BUDGET, RequestMoney
from router.core.option_columns import doubtful
from router.core.options import Option, Options, Roster
from router.core.refusals import insufficient_quota
from router.core.state import ENGINE_QUEUE, Instance
from router.core.types import Candidate, Need, Outcome, Request

#: For this long a returning instance takes only a share of its usual load, which grows from 0 to 1.
RETURN_RAMP_S = 10.0
#: The usual load of an instance without `max_concurrency`, for this ramp.
RAMP_CONCURRENCY = 64


#: A load report older than this is not used to limit the engine's queue.
REPORT_HOLDS_S = 10.0
#: An engine whose KV memory is used to this share may have a queue before its next report.
_FILLING = 0.5

#: Returns the expected quality of each candidate's answer; None where it is unknown.
Qualities = Callable[[Request, Sequence[Candidate]], Sequence[float | None]]


@compiled_init
@dataclass(slots=True)
class Eligible:
    """The candidates in three groups: `free` can take the request now, `busy` are full, and `passed_over` has the others,
    each with a reason. Without any free or full one, `busy` are those that are starting."""

    free: Sequence[Option]
    busy: list[Option]
    passed_over: list[tuple[Candidate, str]]
    refusal: Refusal | None  # set if both free and busy are empty


def free_slots(instance: Instance, now: float) -> float:
    """How many more attempts an instance may take now (inf: no limit)."""
    limit = math.inf if instance.max_concurrency is None else float(instance.max_concurrency)
    if instance.returned_at is not None:
        share = (now - instance.returned_at) / RETURN_RAMP_S
        if share < 1:
            usual = instance.max_concurrency or RAMP_CONCURRENCY
            limit = max(1.0, math.ceil(share * usual))
    free = limit - instance.in_flight
    # The router cannot reorder an engine's own queue, which is first come, first served and ignores SLOs.
    report, awaiting = instance.report, instance.awaiting_first_token
    if (
        awaiting >= ENGINE_QUEUE
        and (report.waiting or (report.kv_usage or 0.0) >= _FILLING)
        and now - (instance.reported_at or 0.0) < REPORT_HOLDS_S
    ):
        waiting = (report.waiting or 0) + instance.dispatched_since_report - instance.ended_since_report
        free = min(free, float(ENGINE_QUEUE - min(waiting, awaiting)))
    return free


def eligible(
    request: Request,
    models: Iterable[str],
    roster: Roster,
    money: RequestMoney,
    tried: frozenset[tuple[str, str]] | set[tuple[str, str]],
    now: float,
    qualities: Qualities | None = None,
) -> Eligible:
    """Sort the candidates of `models` by what they can do for `request` at `now`. `money` says what it can still pay.
    A quality floor is checked against `qualities`, without them against the priors."""
    needs, floor, bounded = request.needs, request.min_quality, money.is_bounded
    # By the best estimate: an upper bound would refuse prompts that fit. The engine has the last word.
    prompt_tokens = request.longest_prompt_tokens or request.prompt_tokens
    need_tokens = prompt_tokens + (1 if request.decodes else 0)
    most_tokens = prompt_tokens + (request.max_tokens or 0)
    candidates, instances = roster.candidates, roster.instances
    looked_at: Sequence[int] = range(len(candidates))
    if not (needs or tried or bounded or floor is not None) and (
        max(need_tokens, most_tokens) <= roster.shortest_context
    ):
        looked_at = doubtful(instances)
        if candidates and not looked_at:
            return Eligible(Options(roster=roster), [], [], None)
    gone: list[int] = []  # the places of those that are not free
    busy: list[Option] = []
    starting: list[Option] = []
    out: list[tuple[Candidate, str]] = []
    unmet: list[Need] = []
    able = not needs
    fits = good = affordable = len(looked_at) < len(candidates)
    over_budget = False  # some candidate is too expensive only for the key's budgets
    poor: Collection[tuple[str, str]] = ()
    best_quality = None
    if floor is not None and candidates:
        poor, best_quality = _below(request, floor, roster, qualities)
    for at in looked_at:
        candidate, instance = candidates[at], instances[at]
        gone.append(at)
        if needs:
            missing = [need for need in needs if need.capability in instance.unsupported]
            if missing:
                unmet += missing
                out.append((candidate, f"cannot {' or '.join(need.capability for need in missing)}"))
                continue
            able = True
        if candidate.context_tokens is not None and need_tokens > candidate.context_tokens:
            out.append((candidate, f"context of {candidate.context_tokens} tokens is too short"))
            continue
        fits = True
        if poor and (candidate.instance, candidate.model) in poor:
            out.append((candidate, f"quality below {floor:g}"))
            continue
        good = True
        too_expensive = money.too_expensive(candidate) if bounded else None
        if too_expensive is not None:
            over_budget |= too_expensive is OVER_BUDGET
            out.append((candidate, too_expensive))
            continue
        affordable = True
        if tried and (candidate.instance, candidate.model) in tried:
            out.append((candidate, "already tried"))
        elif (instance.draining or not instance.healthy or instance.ejected_for) and (
            why := _out_of_service(request, instance)
        ):
            out.append((candidate, why))
        elif instance.starting:
            starting.append(Option(candidate, instance))
        elif free_slots(instance, now) < 1:
            busy.append(Option(candidate, instance))
        else:
            gone.pop()
    free: Sequence[Option] = Options(roster=roster.without(gone) if gone else roster)
    if request.max_tokens is not None and most_tokens > roster.shortest_context:
        free, busy = _roomy(free, busy, most_tokens, out)
    refusal = None
    if not free and not busy:
        busy = starting
    if not free and not busy:
        if out and not able:
            refusal = _unable(request, models, unmet)
        else:
            refusal = _refusal(request, bool(out), fits, good, affordable, over_budget, best_quality)
    return Eligible(free, busy, out, refusal)


def _out_of_service(request: Request, instance: Instance) -> str | None:
    """Why an instance takes no request of this owner now; None if it does."""
    if instance.draining:
        return "draining"
    if not (instance.healthy or instance.starting):
        return "unhealthy"
    if instance.ejected_for and request.owner in instance.ejected_for:
        return "requests of this key fail there"
    return None


def _below(
    request: Request, floor: float, roster: Roster, qualities: Qualities | None
) -> tuple[set[tuple[str, str]], float | None]:
    """The candidates (instance, model) whose expected quality is below the floor, and the best expected quality of all.
    An unknown quality counts as below the floor."""
    candidates = roster.candidates
    found = [each.quality for each in candidates] if qualities is None else qualities(request, candidates)
    poor = {
        (each.instance, each.model)
        for each, quality in zip(candidates, found, strict=True)
        if (quality or 0.0) < floor
    }
    return poor, max((quality for quality in found if quality is not None), default=None)


def _roomy(
    free: Sequence[Option], busy: list[Option], tokens: int, out: list[tuple[Candidate, str]]
) -> tuple[Sequence[Option], list[Option]]:
    """The options whose context holds the prompt and `max_tokens` of output, or all options if there are none. An engine
    refuses a larger `max_tokens`, even if the answer would be short."""

    def holds(option: Option) -> bool:
        context = option.candidate.context_tokens
        return context is None or tokens <= context

    tight = [option for option in (*free, *busy) if not holds(option)]
    if not tight or len(tight) == len(free) + len(busy):
        return free, busy
    out += [
        (option.candidate, "the context has room for the prompt, but not for max_tokens too")
        for option in tight
    ]
    return list(filter(holds, free)), list(filter(holds, busy))


def _unable(request: Request, models: Iterable[str], unmet: Collection[Need]) -> Refusal:
    """The refusal if each candidate lacks some capability that the request needs."""
    missing = [need for need in request.needs if need in unmet]
    return invalid_request(
        f"No instance that serves {', '.join(models)} can {' and '.join(need.capability for need in missing)}.",
        missing[0].param,
    )


def _refusal(
    request: Request,
    known: bool,
    fits: bool,
    good: bool,
    affordable: bool,
    over_budget: bool,
    best_quality: float | None,
) -> Refusal:
    if known and not fits:
        return invalid_request(
            f"The prompt of about {request.longest_prompt_tokens or request.prompt_tokens} tokens is longer than every "
            "candidate's context.",
            request.prompt_field,
            "context_length_exceeded",
        )
    if known and not good:
        return invalid_request(
            f"No candidate is expected to reach a quality of {request.min_quality:g} for this prompt"
            + ("." if best_quality is None else f"; the best is expected to reach {best_quality:.2f}."),
            "routing.min_quality",
            "quality_unattainable",
        )
    if known and not affordable and over_budget:
        return insufficient_quota(
            "The rest of the budgets of the key, or of the keys that made it, cannot pay for the prompt and one "
            "output token at any candidate."
        )
    if known and not affordable:
        return Refusal(
            400,
            "budget_unattainable",
            f"max_cost_usd of {request.max_cost_usd:g} cannot pay for the prompt (at most "
            f"{request.prompt_tokens_bound} tokens) and one output token at any candidate.",
            Outcome.REJECTED_BUDGET,
            param="routing.max_cost_usd",
        )
    return Refusal(
        503,
        "no_instance",
        f"No healthy instance serves {', '.join(request.models)} now.",
        Outcome.REJECTED_NO_INSTANCE,
        retry_after_s=5,
    )
