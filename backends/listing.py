"""The models that an engine lists, compared with those that the fleet file names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from backends import bounded_json
from backends.control import Control
from router.core.quoting import quoted
from router.core.types import Candidate

#: So many of an engine's models are told.
_MOST_TOLD = 5


async def listed(control: Control, path: str, key: str) -> list[dict[str, Any]]:
    """The entries of the list under `key` in the answer to a GET; none if the engine has no such list. Raises UpstreamError."""
    status, body = await control.get(path)
    if status != 200:
        return []
    try:
        answer = bounded_json.loads(body)
    except ValueError:
        return []
    entries = answer.get(key) if isinstance(answer, dict) else None
    return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []


def mismatches(candidates: Iterable[Candidate], contexts: Mapping[str, Any]) -> Iterator[str]:
    """What does not agree, a sentence each. `contexts` has the names that the engine lists, each with its context in tokens,
    or with anything else where the engine does not tell it."""
    if not contexts:
        return
    for candidate in candidates:
        name, wanted = candidate.upstream_model, candidate.context_tokens
        context = contexts.get(name)
        if name not in contexts:
            rest = len(contexts) - _MOST_TOLD
            more = f" and {rest} more" if rest > 0 else ""
            others = ", ".join(map(quoted, sorted(contexts)[:_MOST_TOLD]))
            yield f"the engine lists no model {quoted(name)}; it lists {others}{more}"
        elif type(context) is int and wanted is not None and context < wanted:
            yield f"the engine takes {context} tokens for {quoted(name)}, the fleet file says context_tokens: {wanted}"
