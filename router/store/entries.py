"""One finished request on its way to the database: its rows, and the line that carries them.

The serving process makes the line; the writer process takes it as it is. A line is `JSON TAB BLOB\\n`: the JSON
`[request, [attempt, ...], prompt]`, rows in the order of their columns; and the explanation's blob, if there is one. Neither
contains a tab. In a spool its CRC-32 comes before it, eight hexadecimal digits and a blank, which detects a torn or damaged
line. This module imports no database library: the writer process is small.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from zlib import crc32

import orjson

#: Text from outside (requested model names, ids, upstream error texts) is cut to this length.
MAX_TEXT_CHARS = 256
MAX_PROMPT_CHARS = 65_536
_INT64_MAX = 2**63 - 1
_NEWLINE = orjson.OPT_APPEND_NEWLINE

Row = tuple[Any, ...]

#: The columns of rows, in order. A later version adds at the end: a spool may be of an older one.
REQUEST_COLUMNS: tuple[str, ...] = tuple(
    """
    id client_request_id retry_count received_at api key_name policy model_requested model instance
    attempts hedged prompt_tokens max_tokens output_tokens finish_reason decoded
    predicted_output_tokens_p50 predicted_output_tokens_p90 predicted_ttft_s_p50 predicted_ttft_s_p95
    predicted_e2e_s_p50 predicted_e2e_s_p95 predicted_quality predicted_cost_usd artifact propensity
    queue_wait_s ttft_s tpot_s itl_max_s e2e_s cost_usd slo_ttft_s slo_tpot_s slo_e2e_s slo_met
    max_cost_usd budget_overrun_usd outcome error_code
    min_quality on_miss priority
    """.split()  # noqa: SIM905 (a list of fifty lines)
)
ATTEMPT_COLUMNS: tuple[str, ...] = tuple(
    """
    request_id number instance model started_at first_token_at ended_at output_tokens cost_usd ended_how
    error
    """.split()  # noqa: SIM905
)
_REQUEST_WIDTH, _ATTEMPT_WIDTH = len(REQUEST_COLUMNS), len(ATTEMPT_COLUMNS)
EXPLANATION_COLUMNS: tuple[str, ...] = ("request_id", "blob", "prompt")


class Entry(NamedTuple):
    """The rows of one request; `explanation` is None if nothing was decided."""

    request: Row
    attempts: list[Row]
    explanation: Row | None

    @property
    def id(self) -> str:
        """The request's id."""
        return str(self.request[0])


def to_line(request: Row, attempts: list[Row], blob: bytes | None, prompt: str | None) -> bytes:
    """The line of these rows. Raises TypeError for a value that JSON cannot hold, such as a number of more than 64 bits."""
    document = orjson.dumps((request, attempts, prompt), option=_NEWLINE if blob is None else None)
    return document if blob is None else b"".join((document, b"\t", blob, b"\n"))


def checked(line: bytes) -> bytes:
    """The line as it stands in a spool."""
    return b"%08x %b" % (crc32(line[:-1]), line)


def from_line(line: bytes) -> Entry | None:
    """The entry of a line, of a spool or not; None if it is torn or damaged."""
    if line[-1:] != b"\n":  # torn, perhaps inside the blob: its JSON may be complete
        return None
    if not line.startswith(b"["):
        if line[:9] != b"%08x " % crc32(line[9:-1]):
            return None
        line = line[9:]
    document, _, blob = line.partition(b"\t")
    try:
        request, attempts, *others = orjson.loads(document)
        # A spool of version 0.1.0 has the blob inside the JSON.
        blob = others[0].encode() if len(others) == 2 and others[0] is not None else blob[:-1]
        explanation = (request[0], blob, others[-1]) if blob else None
        attempt_rows = [_row(attempt, _ATTEMPT_WIDTH) for attempt in attempts]
        # A call of the class takes three times the instructions.
        return tuple.__new__(Entry, (_row(request, _REQUEST_WIDTH), attempt_rows, explanation))
    except (ValueError, TypeError, LookupError, AttributeError):  # not a line of ours
        return None


def _row(values: list[Any], columns: int) -> Row:
    """A row of an older or a newer version, with as many columns as now."""
    if len(values) != columns:
        values = values[:columns] + [None] * (columns - len(values))
    return tuple(values)


def find_line(request_id: str, lines: list[bytes]) -> bytes | None:
    """The last of these lines that is the request's."""
    start = b"[[%s," % orjson.dumps(request_id)
    return next((line for line in reversed(lines) if line.startswith(start, line.find(b"["))), None)


def clean(text: str | None) -> str | None:
    """Text that any database stores: no NUL, no control characters, no lone surrogates, bounded length."""
    if text is None or (len(text) <= MAX_TEXT_CHARS and text.isprintable()):
        return text
    return "".join(c if c.isprintable() else "\ufffd" for c in text[:MAX_TEXT_CHARS])


def clean_prompt(text: str | None) -> str | None:
    """A prompt as stored: cut to `MAX_PROMPT_CHARS`, NULs and lone surrogates replaced."""
    if text is None:
        return None
    return text[:MAX_PROMPT_CHARS].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def corrected(entry: Entry) -> Entry:
    """An entry that a database refused, with every value corrected."""
    explanation = entry.explanation
    if explanation is not None:
        explanation = (*explanation[:2], None)
    return Entry(
        corrected_row(entry.request), [corrected_row(attempt) for attempt in entry.attempts], explanation
    )


def corrected_row(row: Row) -> Row:
    """A row that a database refused, with every value corrected: clean text, integers of 64 bits, finite floats."""
    return tuple(map(_corrected, row))


def _corrected(value: Any) -> Any:
    if isinstance(value, str):
        return clean(str(value))
    if isinstance(value, bool) or value is None or isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return max(-_INT64_MAX, min(_INT64_MAX, value))
    if isinstance(value, float) and math.isfinite(value):
        return value
    return None
