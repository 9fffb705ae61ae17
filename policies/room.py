"""Which running requests a further one delays at an instance. `slo` and `cost` defer a request whose SLO is lost until it
delays none."""

from __future__ import annotations

from bisect import bisect_left

from router.core.interfaces import Option

#: A promised TPOT counts as broken if the predicted TPOT is above this share of it.
_TPOT_MARGIN = 1.0 / 1.2
#: The same for a request whose SLO is lost: it can wait for more room.
_LOST_MARGIN = 1.0 / 1.5
#: Lost requests fill an engine's KV memory up to this share.
_LOST_KV_USAGE = 0.8


def promises_broken(option: Option, *, lost: bool = False) -> int:
    """Requests running at the option's instance whose promised TPOT breaks if this request joins them. `lost`: the SLO of this
    request is lost."""
    promised, prediction = option.instance.promised_tpot_s, option.prediction
    if not promised or prediction is None or prediction.tpot_s is None:
        return 0
    return bisect_left(promised, prediction.tpot_s / (_LOST_MARGIN if lost else _TPOT_MARGIN))


def has_room(option: Option) -> bool:
    """Whether a request whose SLO is lost delays no other there."""
    instance = option.instance
    usage = instance.report.kv_usage
    return (
        not promises_broken(option, lost=True)
        and not instance.awaiting_first_token
        and (usage is None or usage < _LOST_KV_USAGE)
    )
