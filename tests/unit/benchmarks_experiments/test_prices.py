"""Pairs of offers in which the price list and the bill disagree."""

from __future__ import annotations

from benchmarks.experiments.prices import Offer, chatty, inversions

CHATTY = Offer("small", "a", 0.1, 0.2, 2.0, 900, params_b=8)
TERSE = Offer("large", "a", 0.1, 0.3, 1.0, 100, params_b=70)
ELSEWHERE = Offer("large", "b", 0.4, 0.5, 3.0, 100, params_b=70)
UNKNOWN = Offer("closed", "a", 0.2, 0.3, 0.5, 50)


def test_lower_prices_and_a_dearer_answer() -> None:
    assert inversions([TERSE, CHATTY, ELSEWHERE]) == [(CHATTY, TERSE)]
    assert inversions([ELSEWHERE, TERSE]) == []  # one model at two prices
    # The largest ratio comes first.
    assert inversions([CHATTY, TERSE, UNKNOWN]) == [(CHATTY, UNKNOWN), (CHATTY, TERSE)]


def test_neither_has_the_lower_prices() -> None:
    dear_to_read = Offer("other", "a", 0.9, 0.1, 9.0, 10)
    assert inversions([dear_to_read, TERSE]) == []


def test_small_and_chatty_at_the_same_provider() -> None:
    assert chatty([TERSE, CHATTY, ELSEWHERE, UNKNOWN]) == [(CHATTY, TERSE)]
    assert chatty([Offer("small", "a", 0.1, 0.2, 0.9, 900, params_b=8), TERSE]) == []
    assert chatty([Offer("small", "a", 0.1, 0.2, 2.0, 90, params_b=8), TERSE]) == []
