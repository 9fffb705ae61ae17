"""Ejection and return of an instance.

An instance is ejected after `eject_after` failures in a row, of probes, of connections or of requests, and comes back
after `return_after` good probes in a row, at first with a growing share of its load
(`eligibility.free_slots`).

A request may be what breaks an engine. So a request that failed at several instances and was answered by none is blamed
itself (`scheduler.Scheduler` finds that out), and failures of one owner's requests take an instance out for that owner
only.
"""

from __future__ import annotations

from router.core.eligibility import RETURN_RAMP_S
from router.core.state import Instance

#: After an instance was taken out at another replica's word, no such word is taken for this long.
OWN_WORD_S = 60.0


def probed(instance: Instance, healthy: bool, eject_after: int, return_after: int, now: float) -> bool:
    """Take in one probe; True if the instance was ejected or came back, for all or for somebody."""
    if not healthy:
        instance.probe_successes = 0
        instance.ejected_for = dict.fromkeys(instance.ejected_for, return_after)
        instance.probe_failures += 1
        return instance.healthy and instance.probe_failures >= eject_after and _eject(instance)
    instance.probe_failures = 0
    instance.probe_successes += 1
    if instance.returned_at is not None and now - instance.returned_at >= RETURN_RAMP_S:
        instance.returned_at = None
    if instance.healthy:
        return bool(instance.ejected_for) and _returns_for_some(instance)
    if instance.probe_successes < return_after:
        return False
    instance.healthy = True
    answered(instance)
    instance.returned_at = now
    return True


def connection_failed(instance: Instance, eject_after: int) -> bool:
    """No connection could be made, which no request can bring about; True if the instance was ejected for it."""
    instance.connect_failures += 1
    return instance.healthy and instance.connect_failures >= eject_after and _eject(instance)


def request_failed(instance: Instance, owner: str | None, eject_after: int, return_after: int) -> bool:
    """A request failed there, and not by its own fault as far as is known. True if the instance was ejected for it.

    `owner` is whose request it was. No single owner has an instance taken out for the others: of its failures in a row
    one fewer counts than ejecting takes. For itself alone it does. None stands for everybody: then there are no keys.
    """
    failures = instance.request_failures
    failures[owner] = failures.get(owner, 0) + 1
    if not instance.healthy:
        return False
    most = max(1, eject_after - 1)
    counted = sum(count if each is None else min(count, most) for each, count in failures.items())
    if counted >= eject_after and (owner is None or len(failures) > 1):
        return _eject(instance)
    if owner is not None and failures[owner] >= eject_after:
        instance.ejected_for[owner] = return_after
    return False


def answered(instance: Instance) -> None:
    """A request was answered there to its end."""
    instance.connect_failures = 0
    instance.request_failures.clear()


def ejected_elsewhere(instance: Instance, now: float) -> bool:
    """Another replica of the router has ejected it; True if it was still in, and that word is taken.

    It returns by this replica's own probes, and for the rest of `OWN_WORD_S` only they and its own attempts count: so
    a replica that cannot reach an instance neither keeps it from the others nor has them take it out again and again.
    """
    if not instance.healthy or now < instance.own_word_until:
        return False
    instance.own_word_until = now + OWN_WORD_S
    return _take_out(instance)


def _returns_for_some(instance: Instance) -> bool:
    """One more good probe counts for those for whom it is out; whether it is back for any."""
    before = instance.ejected_for
    instance.ejected_for = {owner: wanted - 1 for owner, wanted in before.items() if wanted > 1}
    back = before.keys() - instance.ejected_for.keys()
    for owner in back:
        instance.request_failures.pop(owner, None)
    return bool(back)


def _eject(instance: Instance) -> bool:
    instance.ejections += 1
    return _take_out(instance)


def _take_out(instance: Instance) -> bool:
    instance.healthy = False
    instance.ejected_for = {}
    instance.probe_successes = 0
    instance.returned_at = None
    return True
