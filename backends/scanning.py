"""What sends requests to engines and reads their streams, compiled where it can be: `Connection`, `Post`, `StreamedCall`,
`SseScanner`, `EventFormat` and `Assembler`.

`backends.connection`, `post`, `stream`, `sse`, `sse_events` and `assemble` have them in Python. `backends.native` has the
same, compiled from the same files (tests compare both). `router.compiled` says when it is used.
"""

from __future__ import annotations

from pathlib import Path

from backends.assemble import Assembler
from backends.connection import Connection
from backends.post import Post
from backends.sse import SseScanner
from backends.sse_events import EventFormat
from backends.stream import StreamedCall
from router.compiled import compiled_from, why_not

#: Why the compiled reading is not used; None if it is.
WHY_NOT_NATIVE = why_not(
    {
        "backends.native.assemble": (),
        "backends.native.stream": (),
        "backends.native.scanner": compiled_from(Path(__file__).parent),
    }
)

if WHY_NOT_NATIVE is None:
    from backends.native.assemble import Assembler  # type: ignore[no-redef]
    from backends.native.connection import Connection  # type: ignore[no-redef]
    from backends.native.post import Post  # type: ignore[no-redef]
    from backends.native.scanner import SseScanner  # type: ignore[no-redef]
    from backends.native.sse_events import EventFormat  # type: ignore[no-redef]
    from backends.native.stream import StreamedCall  # type: ignore[no-redef]

__all__ = ["WHY_NOT_NATIVE", "Assembler", "Connection", "EventFormat", "Post", "SseScanner", "StreamedCall"]


def description() -> str:
    """One line for people: which reading is used, and why."""
    if WHY_NOT_NATIVE is None:
        return "streams are read by compiled code"
    return f"streams are read by Python code, which is slower: {WHY_NOT_NATIVE}"
