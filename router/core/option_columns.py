"""What decisions read of all options at once. Compiled (`router.native.options`) these loops take a tenth of the instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from router.compiled import why_not
from router.core.interfaces import Option
from router.core.profile import EngineProfile
from router.core.state import Instance, Load, load_of
from router.core.types import Candidate, Prediction

#: Share of a request's decode steps that delay a sequence already there, which ends half-way through them on average.
SHARED_STEPS = 0.5

T = TypeVar("T")


def parts_of(options: Sequence[Option]) -> tuple[list[Candidate], list[Instance]]:
    """Their candidates and their instances."""
    return [each.candidate for each in options], [each.instance for each in options]


def set_predictions(options: Sequence[Option], predictions: Sequence[Prediction]) -> None:
    """Give each option its prediction."""
    for option, prediction in zip(options, predictions, strict=True):
        option.prediction = prediction


def models_of(candidates: Sequence[Candidate]) -> dict[str, str | None]:
    """Their models, each with its family."""
    return {each.model: each.family for each in candidates}


def loads_of(options: Sequence[Option]) -> list[Load]:
    """The loads of the options' instances."""
    return [load_of(each.instance) for each in options]


def all_free(members: Sequence[tuple[Candidate, Instance]]) -> list[Option] | None:
    """An option for each candidate if all of their instances take requests without limits, as mostly; None if one does not."""
    for _, instance in members:
        if (
            not instance.healthy
            or instance.draining
            or instance.ejected_for
            or instance.returned_at is not None
            or (instance.max_concurrency is not None and instance.in_flight >= instance.max_concurrency)
            or instance.report.waiting
        ):
            return None
    return [Option(candidate, instance) for candidate, instance in members]


def prefills_s(
    options: Sequence[Option], prompt_tokens: int, cached_tokens: Sequence[float] | None = None
) -> list[float]:
    """By option: seconds to prefill a prompt of so many tokens on the idle instance, of which so many are in its prefix cache
    (None: none). 0 without an engine profile."""
    found, tokens = [], max(1, prompt_tokens)
    for at, option in enumerate(options):
        instance = option.instance
        profile = instance.profiles.get(option.candidate.model)
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
    for option, tokens, prefill_s in zip(options, output_tokens, prefills_s, strict=True):
        instance = option.instance
        profile = instance.profiles.get(option.candidate.model)
        if profile is None or tokens is None:
            found.append(0.0)
            continue
        step_s = profile.per_seq_s + (prompt_tokens + tokens / 2) * profile.per_kv_token_s
        found.append(instance.running * (prefill_s + SHARED_STEPS * tokens * step_s / instance.speed))
    return found


def hourly_usd(options: Sequence[Option], among: Sequence[int]) -> list[float] | None:
    """The prices per hour of these options' instances; None if one is unknown."""
    prices = [options[at].instance.usd_per_hour for at in among]
    return None if None in prices else cast("list[float]", prices)


def any_promised(options: Sequence[Option]) -> bool:
    """Whether a TPOT is promised to a request that runs at one of the options' instances."""
    return any(each.instance.promised_tpot_s for each in options)


def each_kind(
    options: Sequence[Option],
    among: Sequence[int],
    costs_usd: Sequence[float | None],
    kind_of: Callable[[Option, EngineProfile | None, float | None], T],
) -> list[T]:
    """`kind_of` each option of `among` with its engine profile and its cost. It is called once for neighbours of equal profile,
    speed and cost."""
    found: list[T] = []
    last: tuple[EngineProfile | None, float, float | None] | None = None
    for at, cost_usd in zip(among, costs_usd, strict=True):
        option = options[at]
        instance = option.instance
        profile = instance.profiles.get(option.candidate.model)
        kind = profile, instance.speed, cost_usd
        if profile is None or kind != last:
            found.append(kind_of(option, profile, cost_usd))
        else:
            found.append(found[-1])
        last = kind
    return found


_NATIVE = Path(__file__).parents[1] / "native"
#: Why the compiled loops are not used; None if they are.
WHY_NOT_NATIVE = why_not({"router.native.options": [_NATIVE / "options.pyx", _NATIVE / "fields.pxd"]})
if WHY_NOT_NATIVE is None:
    from router.native.options import (  # type: ignore[no-redef]  # noqa: F401
        all_free,
        any_promised,
        delays_s,
        each_kind,
        hourly_usd,
        loads_of,
        models_of,
        parts_of,
        prefills_s,
        set_predictions,
    )
