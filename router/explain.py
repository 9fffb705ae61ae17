"""What was decided for a request and what happened: as JSON for the API, as plain lines for a person, and as
the command `headway explain`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from router.store.database import StoreError, with_password
from router.store.explanations import KeptCandidate, KeptDecision
from router.store.queries import Store

DEFAULT_URL = "sqlite+aiosqlite:///headway.db"
#: Where the demo keeps its records: read when there is no other store.
DEMO_URL = "sqlite+aiosqlite:///headway-demo.db"

#: What `candidates` tell of a prediction, in this order.
PREDICTED = (
    "output_tokens_p50",
    "output_tokens_p90",
    "ttft_s_p50",
    "ttft_s_p95",
    "e2e_s_p50",
    "e2e_s_p95",
    "quality",
    "cost_usd",
    "p_miss",
)


def described_candidates(decision: KeptDecision) -> list[dict[str, Any]]:
    """The candidates of one decision as the API tells them: `[{instance, model, score, chosen, reason,
    predicted}]`, the predicted values null where the policy asked for none."""
    return [
        {
            "instance": candidate["instance"],
            "model": candidate["model"],
            "score": candidate["score"],
            "chosen": candidate["chosen"],
            "reason": candidate["reason"],
            "predicted": {name: (candidate["predicted"] or {}).get(name) for name in PREDICTED},
        }
        for candidate in decision["candidates"]
    ]


async def describe(store: Store, row: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known of a request, given its row: `request_id` and the row's columns, `why` and `candidates` of
    the last decision, every decision, `attempts` (here each attempt, not their number) and the feedback. Raises
    StoreError."""
    request_id = row["id"]
    explanation = await store.explanation(request_id)
    decisions = [
        {
            "policy": decision["policy"],
            "decided_after_s": decision["decided_after_s"],
            "propensity": decision["propensity"],
            "why": why(decision),
            "candidates": described_candidates(decision),
            "candidates_left_out": decision["candidates_left_out"],
        }
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
#: Reasons of the others that are told one by one; the rest is counted.
_REASONS_TOLD = 3


def why(decision: KeptDecision) -> list[str]:
    """In a few lines: where it went and what was expected there, which one came next and why it was passed over,
    and what was wrong with the rest."""
    candidates = decision["candidates"]
    chosen = next((each for each in candidates if each["chosen"]), None)
    if chosen is None:
        return []
    told = [f"sent to {_place(chosen)} by {decision['policy']}{_expected(chosen)}"]
    propensity = decision["propensity"]
    if propensity is not None and propensity < 1.0:
        told.append(f"drawn with probability {propensity:.3g}")
    others = [each for each in candidates if not each["chosen"]]
    scored = [each for each in others if each["score"] is not None]
    following = min(scored, key=lambda each: each["score"] or 0.0, default=None)
    if following is not None:
        others.remove(following)
        told.append(f"next {_place(following)}: {following['reason']}{_expected(following)}")
    by_reason: dict[str, list[str]] = {}
    for each in others:
        by_reason.setdefault(each["reason"] or "not chosen", []).append(_place(each))
    for reason, places in list(by_reason.items())[:_REASONS_TOLD]:
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        told.append(f"not {', '.join(places[:2])}{more}: {reason}")
    rest = sum(map(len, list(by_reason.values())[_REASONS_TOLD:])) + decision["candidates_left_out"]
    if rest:
        told.append(f"and {rest} more")
    return told


def _place(candidate: KeptCandidate) -> str:
    return f"{candidate['instance']}/{candidate['model']}"


def _expected(candidate: KeptCandidate) -> str:
    predicted = candidate["predicted"] or {}
    known = [
        f"{label} {form(value)}" for label, name, form in _TOLD if (value := predicted.get(name)) is not None
    ]
    return f" [{', '.join(known)}]" if known else ""


# --- for a person -------------------------------------------------------------------------------------
def lines(described: Mapping[str, Any]) -> list[str]:
    """What `describe` tells, as plain lines."""
    row = described
    when = datetime.fromtimestamp(row["received_at"], UTC).isoformat(sep=" ", timespec="milliseconds")
    told = [
        f"request {row['request_id']}, received {when}",
        f"asked for {_text(row['model_requested'])} by {_text(row['api'])}"
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
        told.append(f"SLO: {', '.join(targets)}: {met}")
    error = f" ({row['error_code']})" if row["error_code"] else ""
    told.append(f"outcome: {row['outcome']}{error}")
    told += _compared(row)
    for number, decision in enumerate(described["decisions"], 1):
        told += _decision_lines(number, decision)
    for attempt in described["attempts"]:
        told.append(_attempt_line(attempt))
    told += [f"feedback: quality {given['quality']:g}" for given in described["feedback"]]
    return told


def _compared(row: Mapping[str, Any]) -> list[str]:
    """Measured beside predicted, for what is known."""
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
    told = f"attempt {attempt['number']}: {attempt['instance']}/{attempt['model']}"
    if attempt["first_token_at"] is not None:
        told += f", first token after {_ms(attempt['first_token_at'] - attempt['started_at'])}"
    if attempt["ended_at"] is not None:
        told += f", {_text(attempt['ended_how'])} after {_ms(attempt['ended_at'] - attempt['started_at'])}"
    if attempt["output_tokens"] is not None:
        told += f", {attempt['output_tokens']} tokens"
    if attempt["error"]:
        told += f": {attempt['error']}"
    return told


def _text(value: str | None) -> str:
    return "(unknown)" if value is None else value


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _usd(amount: float | None) -> str:
    return "?" if amount is None else f"${amount:.6f}"


def _share(value: float) -> str:
    return f"{value:.2f}"


#: What is told of a prediction: its name for people, its name, its form.
_TOLD: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("TTFT", "ttft_s_p50", _ms),
    ("E2E", "e2e_s_p50", _ms),
    ("P(miss)", "p_miss", _share),
    ("cost", "cost_usd", _usd),
    ("quality", "quality", _share),
)


# --- the command --------------------------------------------------------------------------------------
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `headway explain`."""
    parser.add_argument("id", metavar="ID", help="request id (x-request-id of the answer)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--store",
        metavar="URL",
        help=f"database of the records (default: {DEFAULT_URL}, without it the demo's)",
    )
    where.add_argument("--config", metavar="FLEET", help="fleet file whose store is meant")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def run(args: argparse.Namespace) -> int:
    """Print what is known of a request. 2 when there is no such request or the store cannot be read."""
    try:
        described = asyncio.run(_described(_store_url(args), args.id))
    except StoreError as error:
        return _refused(str(error))
    if described is None:
        return _refused(f"no request {args.id!r} in the store")
    if args.json:
        sys.stdout.write(orjson.dumps(described, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(described)) + "\n")
    return 0


def _refused(reason: str) -> int:
    sys.stderr.write(f"headway explain: {reason}\n")
    return 2


def _store_url(args: argparse.Namespace) -> str:
    """The store asked for. Raises ConfigError for a bad fleet file."""
    if args.config is None:
        there = [url for url in (DEFAULT_URL, DEMO_URL) if Path(url.rpartition("///")[2]).exists()]
        return str(args.store or (there or [DEFAULT_URL])[0])
    from router.config import load

    config = load(args.config)
    if config.store.password_env is None:
        return config.store.url
    password = os.environ.get(config.store.password_env)
    if password is None:
        raise StoreError(f"store.password_env: environment variable {config.store.password_env} is not set")
    return with_password(config.store.url, password)


async def _described(url: str, request_id: str) -> dict[str, Any] | None:
    store = await Store.open_readonly(url)
    try:
        row = await store.request(request_id, any_key=True)
        return None if row is None else await describe(store, row)
    finally:
        await store.close()
