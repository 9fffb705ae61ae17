"""Explains a request: its decisions and its result, as JSON for the API and as text lines for `headway explain`."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from router.store.database import StoreError, location, opened
from router.store.explanations import KeptCandidate, KeptDecision
from router.store.queries import Store
from router.store.records import PREDICTED_COLUMNS
from router.store_arguments import add_store_arguments, store_of

DEFAULT_URL = "sqlite+aiosqlite:///headway.db"
#: The demo's records, read if there is no other store.
DEMO_URL = "sqlite+aiosqlite:///headway-demo.db"

#: The fields of a prediction that `candidates` show, in this order.
PREDICTED = (*PREDICTED_COLUMNS, "p_miss")


def described_candidates(decision: KeptDecision) -> list[dict[str, Any]]:
    """The candidates of one decision for the API: `[{instance, model, score, chosen, reason, predicted}]`. The predicted
    values are null if the policy uses no predictions."""
    return [
        {
            **{name: value for name, value in candidate.items() if name != "load"},
            "predicted": {name: (candidate["predicted"] or {}).get(name) for name in PREDICTED},
        }
        for candidate in decision["candidates"]
    ]


async def describe(store: Store, row: Mapping[str, Any]) -> dict[str, Any]:
    """Everything recorded about a request, given its row: `request_id` and the row's columns, `why` and `candidates` of
    the last decision, all decisions, `attempts` (a list here, not their number) and the feedback. Raises StoreError."""
    request_id = row["id"]
    explanation = await store.explanation(request_id)
    decisions = [
        {**decision, "why": why(decision), "candidates": described_candidates(decision)}
        for decision in (explanation["decisions"] if explanation else ())
    ]
    return {
        "request_id": request_id,
        **row,
        "why": decisions[-1]["why"] if decisions else [],
        "candidates": decisions[-1]["candidates"] if decisions else [],
        "decisions": decisions,
        "attempts": await store.attempts(request_id),
        "feedback": [
            {"quality": given["quality"], "received_at": given["received_at"]}
            for given in await store.feedback(request_id)
        ],
    }


# --- why ----------------------------------------------------------------------------------------------
#: This many reasons of the other candidates are listed; the rest is counted.
_REASONS_SHOWN = 3


def why(decision: KeptDecision) -> list[str]:
    """A few lines: the chosen candidate and its prediction, the best of the others and why it was not chosen, and the
    reasons against the rest."""
    candidates = decision["candidates"]
    chosen = next((each for each in candidates if each["chosen"]), None)
    if chosen is None:
        shown, following_is = ["no candidate could take it"], "nearest"
    else:
        shown, following_is = [f"sent to {_place(chosen)} by {decision['policy']}{_expected(chosen)}"], "next"
    propensity = decision["propensity"]
    if propensity is not None and propensity < 1.0:
        shown.append(f"drawn with probability {propensity:.3g}")
    others = [each for each in candidates if not each["chosen"]]
    scored = [each for each in others if each["score"] is not None]
    following = min(scored, key=lambda each: each["score"] or 0.0, default=None)
    if following is not None:
        others.remove(following)
        shown.append(f"{following_is} {_place(following)}: {following['reason']}{_expected(following)}")
    by_reason: dict[str, list[str]] = {}
    for each in others:
        by_reason.setdefault(each["reason"] or "not chosen", []).append(_place(each))
    for reason, places in list(by_reason.items())[:_REASONS_SHOWN]:
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        shown.append(f"not {', '.join(places[:2])}{more}: {reason}")
    rest = sum(map(len, list(by_reason.values())[_REASONS_SHOWN:])) + decision["candidates_left_out"]
    if rest:
        shown.append(f"and {rest} more")
    return shown


def _place(candidate: KeptCandidate) -> str:
    return f"{candidate['instance']}/{candidate['model']}"


def _expected(candidate: KeptCandidate) -> str:
    predicted = candidate["predicted"] or {}
    known = [
        f"{label} {form(value)}" for label, name, form in _SHOWN if (value := predicted.get(name)) is not None
    ]
    return f" [{', '.join(known)}]" if known else ""


# --- for a person -------------------------------------------------------------------------------------
def lines(described: Mapping[str, Any]) -> list[str]:
    """The result of `describe` as text lines."""
    row = described
    when = datetime.fromtimestamp(row["received_at"], UTC).isoformat(sep=" ", timespec="milliseconds")
    shown = [
        f"request {row['request_id']}, received {when}",
        f"requested {_text(row['model_requested'])} over {_text(row['api'])}"
        + (f" with key {row['key_name']}" if row["key_name"] else "")
        + f", policy {_text(row['policy'])}",
    ]
    targets = [
        f"{name} {_ms(row[column])}"
        for name, column in (("TTFT", "slo_ttft_s"), ("TPOT", "slo_tpot_s"), ("E2E", "slo_e2e_s"))
        if row[column] is not None
    ]
    if targets:
        met = {None: "unknown", True: "met", False: "missed"}[row["slo_met"]]
        shown.append(f"SLO: {', '.join(targets)}: {met}")
    error = f" ({row['error_code']})" if row["error_code"] else ""
    shown.append(f"outcome: {row['outcome']}{error}")
    shown += _compared(row)
    for number, decision in enumerate(described["decisions"], 1):
        shown += _decision_lines(number, decision)
    for attempt in described["attempts"]:
        shown.append(_attempt_line(attempt))
    shown += [f"feedback: quality {given['quality']:g}" for given in described["feedback"]]
    return shown


def _compared(row: Mapping[str, Any]) -> list[str]:
    """The measured values with their predictions."""
    parts = []
    if row["ttft_s"] is not None:
        parts.append(f"TTFT {_ms(row['ttft_s'])} (predicted {_ms(row['predicted_ttft_s_p50'])})")
    if row["e2e_s"] is not None:
        parts.append(f"E2E {_ms(row['e2e_s'])} (predicted {_ms(row['predicted_e2e_s_p50'])})")
    if row["output_tokens"] is not None:
        predicted = row["predicted_output_tokens_p50"]
        parts.append(
            f"{row['output_tokens']} output tokens (predicted {'?' if predicted is None else round(predicted)})"
        )
    if row["cost_usd"] is not None:
        parts.append(f"cost {_usd(row['cost_usd'])} (predicted {_usd(row['predicted_cost_usd'])})")
    return [", ".join(parts)] if parts else []


def _decision_lines(number: int, decision: Mapping[str, Any]) -> list[str]:
    after = decision["decided_after_s"]
    when = "" if after is None else f" after {_ms(after)}"
    return [f"decision {number}{when}:", *(f"  {line}" for line in decision["why"])]


def _attempt_line(attempt: Mapping[str, Any]) -> str:
    line = f"attempt {attempt['number']}: {attempt['instance']}/{attempt['model']}"
    if attempt["first_token_at"] is not None:
        line += f", first token after {_ms(attempt['first_token_at'] - attempt['started_at'])}"
    if attempt["ended_at"] is not None:
        line += f", {_text(attempt['ended_how'])} after {_ms(attempt['ended_at'] - attempt['started_at'])}"
    if attempt["output_tokens"] is not None:
        line += f", {attempt['output_tokens']} tokens"
    if attempt["error"]:
        line += f": {attempt['error']}"
    return line


def _text(value: str | None) -> str:
    return "(unknown)" if value is None else value


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _usd(amount: float | None) -> str:
    """With six decimals, and more where a small amount has fewer than two digits in these."""
    if amount is None:
        return "?"
    decimals = 1 - math.floor(math.log10(amount)) if 0 < amount < 1e-5 else 6
    return f"${amount:.{decimals}f}"


#: The shown fields of a prediction: label, field, format.
_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("TTFT", "ttft_s_p50", _ms),
    ("E2E", "e2e_s_p50", _ms),
    ("P(miss)", "p_miss", "{:.2f}".format),
    ("cost", "cost_usd", _usd),
    ("quality", "quality", "{:.2f}".format),
)


# --- the command --------------------------------------------------------------------------------------
ERRORS = (StoreError,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="request id (x-request-id of the answer)")
    add_store_arguments(parser, default=f"{DEFAULT_URL}, or the demo's if that does not exist")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Print what is recorded about a request; returns the exit code. Raises ConfigError for a bad fleet file, and
    StoreError, also if there is no such request."""
    there = [url for url in (DEFAULT_URL, DEMO_URL) if Path(url.rpartition("///")[2]).exists()]
    url = store_of(args, default=(there or [DEFAULT_URL])[0])
    described = asyncio.run(_described(url, args.id))
    if args.json:
        sys.stdout.write(orjson.dumps(described, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(described)) + "\n")
    return 0


async def _described(url: str, request_id: str) -> dict[str, Any]:
    async with opened(url) as engine:
        store = Store(engine)
        row = await store.request(request_id, any_key=True)
        if row is None:
            raise StoreError(f"no request {request_id!r} in {location(engine.url)}")
        return await describe(store, row)
