"""Ejection and return of an instance.

An instance is ejected after `eject_after` consecutive failures of probes, of connections or of requests. It returns after
`return_after` consecutive successful probes, at first with a growing share of its load (`eligibility.free_slots`).
A new instance that is still starting serves from its first successful probe on.

The request itself may be the cause of failures. If a request fails at several instances and none answers it, the
scheduler does not count it as a failure of the instances. The failures of one owner's requests eject an instance for
that owner only.
"""

from __future__ import annotations

from router.core.eligibility import RETURN_RAMP_S
from router.core.state import Instance

#: After this replica has adopted an ejection by another one, it adopts no further ejection of that instance for this long.
OWN_WORD_S = 60.0


def probed(instance: Instance, healthy: bool, eject_after: int, return_after: int, now: float) -> bool:
    """Record one probe. True if it ejected the instance or brought it back, for all owners or for some."""
    if not healthy:
        instance.probe_successes = 0
        instance.ejected_for = dict.fromkeys(instance.ejected_for, return_after)
        instance.probe_failures += 1
        if not instance.healthy or instance.probe_failures < eject_after:
            return False
        _eject(instance)
        return True
    instance.probe_failures = 0
    instance.probe_successes += 1
    if instance.starting:
        instance.starting, instance.healthy = False, True
        return True
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


def connection_failed(instance: Instance, eject_after: int) -> None:
    """Record that no connection could be made. A request is never the cause."""
    instance.connect_failures += 1
    if instance.healthy and instance.connect_failures >= eject_after:
        _eject(instance)


def request_failed(instance: Instance, owner: str | None, eject_after: int, return_after: int) -> None:
    """Record a failed request that is probably not the cause itself.

    `owner` is the operator's key that the request counts for; None if the gateway has no keys. One owner alone cannot
    eject an instance for the others: after `eject_after` of its consecutive failures the instance is ejected for this
    owner only.
    """
    failures = instance.request_failures
    failures[owner] = failures.get(owner, 0) + 1
    if not instance.healthy or sum(failures.values()) < eject_after:
        return
    if owner is None or len(failures) > 1:
        _eject(instance)
    else:
        instance.ejected_for[owner] = return_after


def answered(instance: Instance) -> None:
    """Record a request that the instance answered completely."""
    instance.connect_failures = 0
    if instance.request_failures:
        instance.request_failures.clear()


def ejected_elsewhere(instance: Instance, now: float) -> None:
    """Adopt another replica's ejection of an instance that is healthy here.

    This replica's own probes bring the instance back. Until `OWN_WORD_S` have passed, only they and its own attempts
    count. So a replica that cannot reach an instance does not make the others eject it again and again.
    """
    if instance.healthy and now >= instance.own_word_until:
        instance.own_word_until = now + OWN_WORD_S
        _take_out(instance)


def _returns_for_some(instance: Instance) -> bool:
    """Count a successful probe for each owner that the instance is ejected for. True if it is back for any of them."""
    before = instance.ejected_for
    instance.ejected_for = {owner: wanted - 1 for owner, wanted in before.items() if wanted > 1}
    back = before.keys() - instance.ejected_for.keys()
    for owner in back:
        instance.request_failures.pop(owner, None)
    return bool(back)


def _eject(instance: Instance) -> None:
    instance.ejections += 1
    _take_out(instance)


def _take_out(instance: Instance) -> None:
    instance.healthy = False
    instance.ejected_for = {}
    instance.probe_successes = 0
    instance.returned_at = None
