"""One finished request on its way to the database: its rows, and their line in the spool.

A line is `CRC JSON\\n`: the CRC-32 of the JSON in eight hexadecimal digits, which detects a torn or damaged line.
The JSON is `[request, [attempt, ...], explanation, prompt]`, the rows in the order of their columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import orjson

from router.store import explanations
from router.store.records import RequestRecord, Row, attempt_row, clean_prompt, corrected_row, request_row

#: Errors of a record or row that fits no table, while it is turned into rows or a line.
UNFIT = (KeyError, TypeError, ValueError, AttributeError)


class Entry(NamedTuple):
    """The rows of one request; `explanation` is None if nothing was decided."""

    request: Row
    attempts: list[Row]
    explanation: Row | None


def make_entry(record: RequestRecord, *, keep_prompts: bool) -> Entry | None:
    """A record's rows; None if the record has no valid row. Bad values are corrected, and an explanation that cannot be
    encoded is left out."""
    try:
        attempts = [attempt_row(record.id, attempt) for attempt in record.attempt_records]
        blob = explanations.encode(record)
        prompt = clean_prompt(record.prompt) if keep_prompts else None
        return Entry(request_row(record), attempts, None if blob is None else (record.id, blob, prompt))
    except UNFIT:
        try:
            attempts = [corrected_row(attempt_row(record.id, attempt)) for attempt in record.attempt_records]
            return Entry(corrected_row(request_row(record)), attempts, None)
        except UNFIT:
            return None


def corrected(entry: Entry) -> Entry:
    """An entry that a database refused, with every value corrected."""
    explanation = entry.explanation
    if explanation is not None:
        explanation = (*explanation[:2], None)
    return Entry(
        corrected_row(entry.request), [corrected_row(attempt) for attempt in entry.attempts], explanation
    )


def to_line(entry: Entry) -> bytes:
    """The entry as a line of the spool."""
    try:
        document = _dumped(entry)
    except TypeError:  # a number of more than 64 bits, half a surrogate pair
        document = _dumped(corrected(entry))
    return b"%08x %s\n" % (crc32(document), document)


def _dumped(entry: Entry) -> bytes:
    blob, prompt = None, None
    if entry.explanation is not None:
        _, blob, prompt = entry.explanation
        blob = blob.decode()  # JSON itself
    return orjson.dumps((entry.request, entry.attempts, blob, prompt))


def from_line(line: bytes) -> Entry | None:
    """The entry of a line; None if the line is torn or damaged."""
    document = line[9:-1]
    if line[:9] != b"%08x " % crc32(document) or line[-1:] != b"\n":
        return None
    request, attempts, blob, prompt = orjson.loads(document)
    explanation: tuple[Any, ...] | None = None if blob is None else (request[0], blob.encode(), prompt)
    return Entry(tuple(request), [tuple(attempt) for attempt in attempts], explanation)
