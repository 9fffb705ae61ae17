"""The colours and dashes of policies and outcomes, in light and dark, for colour-blind readers (after Okabe and Ito). Baselines are
grey and dashed, so that the policies that are compared with them stand out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from router.core.types import Outcome

_OURS: Mapping[str, tuple[str, str]] = {
    "latency": ("#0067a8", "#5ab0f0"),
    "slo": ("#d1470b", "#ff8f5a"),
    "cost": ("#00805c", "#35cba0"),
    "relevance": ("#a5368f", "#e58fd3"),
    "price": ("#a37500", "#e6b84a"),
}
#: For policies of other names.
_FURTHER = (
    *_OURS.values(),
    *(("#5748b5", "#a99cf5"), ("#7a1f3d", "#e07f9f"), ("#3f7d20", "#9ccf6f")),
)
_BASELINES = ("round_robin", "random", "least_load", "power_of_two", "lmetric")
_GREYS = (
    *(("#5b6470", "#aab3bd"), ("#948a7c", "#8c8578"), ("#56797f", "#8fb3b8"), ("#86748f", "#b9a6c4")),
    *(("#7a8455", "#b3bd8c"), ("#94696a", "#c99c9c"), ("#737373", "#9c9c9c")),
)
_DASHES = ("7 3", "2 3", "9 3 2 3", "4 2", "12 4", "6 2 1 2 1 2", "1 2")


@dataclass(frozen=True, slots=True)
class PolicyStyle:
    css: str
    light: str
    dark: str
    dash: str


def is_baseline(policy: str) -> bool:
    """Whether a policy is there to be compared with. Pairs of a model router and round robin are."""
    return policy in _BASELINES or policy.endswith("_rr")


def styles_of(policies: Sequence[str]) -> dict[str, PolicyStyle]:
    used = {_OURS[name] for name in policies if name in _OURS}
    free = [pair for pair in _FURTHER if pair not in used] or list(_FURTHER)
    greys, further = cycle(zip(_GREYS, _DASHES, strict=True)), cycle(free)
    styles = {}
    for index, policy in enumerate(policies):
        colours, dash = next(greys) if is_baseline(policy) else (_OURS.get(policy) or next(further), "none")
        styles[policy] = PolicyStyle(f"p{index}", *colours, dash)
    return styles


#: By policy.
PolicyStyles = Mapping[str, PolicyStyle]
#: As `report.report` makes it.
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutcomeGroup:
    """Outcomes that are shown as one."""

    css: str
    label: str
    outcomes: tuple[Outcome, ...]
    light: str
    dark: str


#: In the order in which bars are stacked. What ended before decoding for lack of time or money is apart.
OUTCOME_GROUPS = (
    OutcomeGroup("o-ok", "ok", (Outcome.OK,), "#3f9e7c", "#2f8265"),
    OutcomeGroup("o-late", "late", (Outcome.LATE,), "#e5c15c", "#b8953a"),
    OutcomeGroup("o-cut", "cut by budget", (Outcome.BUDGET_EXHAUSTED_MID_DECODE,), "#c7a4d8", "#8d6aa0"),
    OutcomeGroup("o-mid", "timed out while decoding", (Outcome.EXPIRED_MID_DECODE,), "#e59a63", "#b46f3c"),
    OutcomeGroup(
        "o-time",
        "timed out before decoding",
        (Outcome.EXPIRED_IN_QUEUE, Outcome.EXPIRED_BEFORE_FIRST_TOKEN),
        "#c62f2f",
        "#e0504a",
    ),
    OutcomeGroup(
        "o-money", "out of budget before decoding", (Outcome.REJECTED_BUDGET,), "#7a2f95", "#b565d6"
    ),
    OutcomeGroup("o-slo", "refused for SLO", (Outcome.REJECTED_SLO,), "#7fb2d9", "#5487ad"),
    OutcomeGroup(
        "o-full",
        "refused: overload, rate limit, no instance",
        (Outcome.REJECTED_OVERLOAD, Outcome.REJECTED_RATE, Outcome.REJECTED_NO_INSTANCE),
        "#2f6593",
        "#3d7cb3",
    ),
    OutcomeGroup("o-error", "failed", (Outcome.BACKEND_ERROR,), "#1d1d1d", "#d9d9d9"),
    OutcomeGroup(
        "o-outside",
        "invalid, not allowed, cancelled",
        (Outcome.REJECTED_INVALID, Outcome.REJECTED_AUTH, Outcome.CLIENT_CANCELLED),
        "#a8adb3",
        "#666c73",
    ),
)
