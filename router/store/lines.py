"""The line of a finished request, made once, when the request ends."""

from __future__ import annotations

from router.background import failed
from router.store import explanations
from router.store.entries import clean_prompt, corrected_row, to_line
from router.store.records import RequestRecord, attempt_row, request_row

#: Errors of a record that fits no table, while it is turned into rows.
UNFIT = (KeyError, TypeError, ValueError, AttributeError)


def record_line(record: RequestRecord, *, keep_prompts: bool) -> bytes | None:
    """The line; None if the record has no valid row. Values that no line takes are corrected, and an explanation that cannot
    be encoded is left out."""
    try:
        record.complete()
        try:
            record.describe()
            blob = explanations.encode(record)
        except Exception as error:  # noqa: BLE001 (a policy's reasons must not cost a row)
            failed("explanation", error)
            blob = None
        request = request_row(record)
        attempts = [attempt_row(record.id, attempt) for attempt in record.attempt_records]
        prompt = clean_prompt(record.prompt) if keep_prompts else None
        try:
            return to_line(request, attempts, blob, prompt)
        except TypeError:  # a number of more than 64 bits, half a surrogate pair
            return to_line(corrected_row(request), list(map(corrected_row, attempts)), blob, None)
    except UNFIT:
        return None
