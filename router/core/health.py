"""Ejection and return of an instance.

An instance is ejected after `eject_after` failures in a row, of probes or of attempts, and comes back
after `return_after` good probes in a row, at first with a growing share of its load
(`eligibility.free_slots`).
"""

from __future__ import annotations

from router.core.eligibility import RETURN_RAMP_S
from router.core.events import Ended
from router.core.state import Instance
from router.core.types import EndedHow

#: After an instance was taken out at another replica's word, no such word is taken for this long.
OWN_WORD_S = 60.0


def probed(instance: Instance, healthy: bool, eject_after: int, return_after: int, now: float) -> bool:
    """Take in one probe; True if the instance was ejected or came back."""
    if not healthy:
        instance.probe_successes = 0
        instance.probe_failures += 1
        return instance.healthy and instance.probe_failures >= eject_after and _eject(instance)
    instance.probe_failures = 0
    instance.probe_successes += 1
    if instance.returned_at is not None and now - instance.returned_at >= RETURN_RAMP_S:
        instance.returned_at = None
    if instance.healthy or instance.probe_successes < return_after:
        return False
    instance.healthy = True
    instance.attempt_failures = 0
    instance.returned_at = now
    return True


def attempt_ended(instance: Instance, event: Ended, eject_after: int) -> bool:
    """Take in the end of an attempt; True if the instance was ejected for it."""
    if event.how is EndedHow.OK:
        instance.attempt_failures = 0
    elif event.how is EndedHow.FAILED and event.fault:
        instance.attempt_failures += 1
        return instance.healthy and instance.attempt_failures >= eject_after and _eject(instance)
    return False


def ejected_elsewhere(instance: Instance, now: float) -> bool:
    """Another replica of the router has ejected it; True if it was still in, and that word is taken.

    It returns by this replica's own probes, and for the rest of `OWN_WORD_S` only they and its own attempts count: so
    a replica that cannot reach an instance neither keeps it from the others nor has them take it out again and again.
    """
    if not instance.healthy or now < instance.own_word_until:
        return False
    instance.own_word_until = now + OWN_WORD_S
    return _take_out(instance)


def _eject(instance: Instance) -> bool:
    instance.ejections += 1
    return _take_out(instance)


def _take_out(instance: Instance) -> bool:
    instance.healthy = False
    instance.probe_successes = 0
    instance.returned_at = None
    return True
