"""The service's logs, as text or as one JSON object per line, with the id of the current request.

Logs contain no prompt and no key: messages do not include them, and a request's line has only the columns in `_COLUMNS`.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from router.store.records import RequestRecord

#: The request that the running task serves; None outside of one.
current_request: ContextVar[str | None] = ContextVar("current_request", default=None)

requests_logger = logging.getLogger("headway.requests")

#: The columns of a request's record in its log line, in order.
_COLUMNS = (
    *("api", "key_name", "policy", "model", "instance", "outcome", "error_code", "attempts", "hedged"),
    *("prompt_tokens", "output_tokens", "queue_wait_s", "ttft_s", "tpot_s", "e2e_s", "cost_usd", "slo_met"),
)


class JsonLines(logging.Formatter):
    """One JSON object per line: `time` (UTC), `level`, `logger`, `message`, `request_id` if there is one, the caller's
    `extra={"fields": {...}}`, and `exception` with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = current_request.get()
        if request_id is not None:
            line["request_id"] = request_id
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


#: Characters that could forge a log line or control a terminal, with their replacements.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != ord("\t")} | {
    ord("\n"): "\n    ",
    **{code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A))},
}


class TextLines(logging.Formatter):
    """A text line: time, level, logger, message, and the request's id if there is one. Further lines of a message are
    indented and control characters are escaped, so that no foreign text looks like a log line."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging names it so)
        line = super().formatMessage(record)
        fields = getattr(record, "fields", {})
        request_id = fields.get("request_id") or current_request.get()
        if request_id is not None and request_id not in line:
            line = f"{line} [{request_id}]"
        rest = " ".join(f"{name}={value}" for name, value in fields.items() if name != "request_id")
        return (f"{line} {rest}" if rest else line).translate(_CONTROLS)


def configure(form: Literal["text", "json"], level: str) -> None:
    """Send the process's log to standard error in this format, from this level up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs each of its plugins
    # At debug it logs the values of all statements, such as hashes of keys.
    logging.getLogger("aiosqlite").setLevel(logging.WARNING)


def log_request(record: RequestRecord) -> None:
    """Log a finished request."""
    if not requests_logger.isEnabledFor(logging.INFO):
        return
    fields = {name: value for name in _COLUMNS if (value := getattr(record, name)) is not None}
    for name, value in fields.items():
        if isinstance(value, float):
            fields[name] = float(f"{value:.6g}")
    fields["outcome"] = str(record.outcome.value)
    requests_logger.info("request", extra={"fields": {"request_id": record.id, **fields}})
