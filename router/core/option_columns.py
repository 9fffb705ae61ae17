"""What decisions read of all options at once. Compiled (`router.native.options`) these loops take a tenth of the instructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from router.compiled import why_not
from router.core.options import SOURCES, Option, Options, PredictionColumns
from router.core.profile import EngineProfile
from router.core.state import ENGINE_QUEUE, Instance, Load, load_of
from router.core.types import Candidate

#: Share of a request's decode steps that delay a sequence already there, which ends half-way through them on average.
SHARED_STEPS = 0.5
#: Weight of the delay to later prompts. Of 0, 1, 3 and 6 it gives the least mean E2E in the full form of the simulated scenario
#: `unlike-widths`; in the small form 0, 1 and 3 differ little.
LATER = 3.0
#: The greatest share of the time that an instance is taken to be busy with prefills.
MOST_BUSY = 0.9

T = TypeVar("T")


def parts_of(options: Sequence[Option]) -> tuple[Sequence[Candidate], Sequence[Instance]]:
    """Their candidates and their instances; those of a roster are its own tuples."""
    if isinstance(options, Options) and options.roster is not None:
        return options.roster.candidates, options.roster.instances
    return [each.candidate for each in options], [each.instance for each in options]


def predicted(options: Sequence[Option]) -> bool:
    """Whether the options (at least one) have predictions."""
    if isinstance(options, Options) and options.roster is not None:
        return options.columns is not None
    return options[0].prediction is not None


def set_predictions(options: Sequence[Option], columns: PredictionColumns) -> None:
    """Give each option its prediction."""
    if isinstance(options, Options):
        options.predicted(columns)
        return
    for option, prediction in zip(options, columns.each(0, len(options)), strict=True):
        option.prediction = prediction


def models_of(candidates: Sequence[Candidate]) -> dict[str, str | None]:
    """Their models, each with its family."""
    return {each.model: each.family for each in candidates}


def loads_of(options: Sequence[Option]) -> Sequence[Load]:
    """The loads of the options' instances, as they are now."""
    return [load_of(instance) for instance in parts_of(options)[1]]


def doubtful(instances: Sequence[Instance]) -> list[int]:
    """The places of the instances that may be full or out of service. All others can take a request."""
    return [
        at
        for at, instance in enumerate(instances)
        if not instance.healthy
        or instance.draining
        or instance.ejected_for
        or instance.returned_at is not None
        or (instance.max_concurrency is not None and instance.in_flight >= instance.max_concurrency)
        or instance.awaiting_first_token >= ENGINE_QUEUE
    ]


def prefills_s(
    options: Sequence[Option], prompt_tokens: int, cached_tokens: Sequence[float] | None = None
) -> list[float]:
    """By option: seconds to prefill a prompt of so many tokens on the idle instance, of which so many are in its prefix cache
    (None: none). 0 without an engine profile."""
    found, tokens = [], max(1, prompt_tokens)
    for at, (instance, profile) in enumerate(zip(parts_of(options)[1], _profiles_of(options), strict=True)):
        cached = 0 if cached_tokens is None else int(min(cached_tokens[at], tokens - 1))
        found.append(0.0 if profile is None else profile.prefill_s(tokens, cached) / instance.speed)
    return found


def delays_s(
    options: Sequence[Option],
    output_tokens: Sequence[float | None],
    prompt_tokens: int,
    prefills_s: Sequence[float],
) -> list[float]:
    """By option: expected seconds that a request of so many tokens, with this prefill, adds to the E2E of all sequences at its
    instance, in total. 0 without an engine profile or where the output tokens are None."""
    found = []
    for instance, profile, tokens, prefill_s in zip(
        parts_of(options)[1], _profiles_of(options), output_tokens, prefills_s, strict=True
    ):
        if profile is None or tokens is None:
            found.append(0.0)
            continue
        step_s = profile.per_seq_s + (prompt_tokens + tokens / 2) * profile.per_kv_token_s
        found.append(instance.running * (prefill_s + SHARED_STEPS * tokens * step_s / instance.speed))
    return found


def later_s(
    options: Sequence[Option],
    prefills_s: Sequence[float],
    ttfts_s: Sequence[float],
    sent: Mapping[str, tuple[float, float]],
    share: float,
) -> list[float]:
    """By option: expected seconds of delay to the prompts that come during a prefill, from its length and the time until it ends
    (`policies.expected`). Its r and u are the prompts, and the seconds of their prefills, that were `sent` to the instance, each
    times `share`."""
    found = []
    for candidate, prefill_s, ttft_s in zip(parts_of(options)[0], prefills_s, ttfts_s, strict=True):
        prompts, busy_s = sent.get(candidate.instance, (0.0, 0.0))
        pressure = prompts * share / (1.0 - min(MOST_BUSY, busy_s * share))
        found.append(LATER * pressure * prefill_s * (max(ttft_s, prefill_s) - prefill_s / 2))
    return found


def hourly_usd(options: Sequence[Option], among: Sequence[int]) -> list[float] | None:
    """The prices per hour of these options' instances; None if one is unknown."""
    instances = parts_of(options)[1]
    prices = [instances[at].usd_per_hour for at in among]
    return None if None in prices else cast("list[float]", prices)


def any_promised(options: Sequence[Option]) -> bool:
    """Whether a TPOT is promised to a request that runs at one of the options' instances."""
    return any(each.promised_tpot_s for each in parts_of(options)[1])


def each_kind(
    options: Sequence[Option],
    among: Sequence[int],
    costs_usd: Sequence[float | None],
    kind_of: Callable[[Option, EngineProfile | None, float | None], T],
) -> list[T]:
    """`kind_of` each option of `among` with its engine profile and its cost. It is called once for neighbours of equal profile,
    speed and cost."""
    instances, profiles = parts_of(options)[1], _profiles_of(options)
    found: list[T] = []
    last: tuple[EngineProfile | None, float, float | None] | None = None
    for at, cost_usd in zip(among, costs_usd, strict=True):
        profile = profiles[at]
        kind = profile, instances[at].speed, cost_usd
        if profile is None or kind != last:
            found.append(kind_of(options[at], profile, cost_usd))
        else:
            found.append(found[-1])
        last = kind
    return found


def _profiles_of(options: Sequence[Option]) -> Sequence[EngineProfile | None]:
    """By option the engine profile of its model at its instance; None if unknown."""
    if isinstance(options, Options) and options.roster is not None:
        return options.roster.profiles
    return [each.instance.profiles.get(each.candidate.model) for each in options]


#: Why the compiled loops are not used; None if they are.
WHY_NOT_NATIVE = why_not({"router.native.options": SOURCES})
if WHY_NOT_NATIVE is None:
    from router.native.options import (  # type: ignore[no-redef]  # noqa: F401
        any_promised,
        delays_s,
        doubtful,
        each_kind,
        hourly_usd,
        later_s,
        loads_of,
        models_of,
        parts_of,
        predicted,
        prefills_s,
        set_predictions,
    )
