"""One page of metrics made of those of several workers.

Each sample gets the label `worker`, and each family stands once, as Prometheus' text format 0.0.4 wants it. Sums over
the label are what the gateway counted: a worker that was started again begins its own series anew, which
`rate()` and `increase()` understand, where counters summed here would seem to fall.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)
_LABELLED = re.compile(r"^([a-zA-Z_:][\w:]*)\{", re.MULTILINE)
_BARE = re.compile(r"^([a-zA-Z_:][\w:]*) ", re.MULTILINE)
_COMMENTS = re.compile(r"(?:#.*\n)*")


def merge(pages: Mapping[int, str], more: str = "") -> str:
    """The pages of workers by number as one page; `more` is one that goes in as it is. Each begins every family by
    its HELP line, as prometheus_client writes them."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    labelled = [_labelled(page, number) for number, page in sorted(pages.items())]
    for page in (*labelled, more):
        for family in _FAMILY.split(page):
            if not family.startswith("# HELP "):
                continue  # what stands before the first one: nothing
            name = family.split(" ", 3)[2]
            head = _COMMENTS.match(family)
            ends = 0 if head is None else head.end()
            heads.setdefault(name, family[:ends])
            samples.setdefault(name, []).append(family[ends:])
    return "".join(head + "".join(samples[name]) for name, head in heads.items())


def _labelled(page: str, number: int) -> str:
    page = _LABELLED.sub(rf'\1{{worker="{number}",', page)
    return _BARE.sub(rf'\1{{worker="{number}"}} ', page)
