"""Gathers the documentation site's pages in a folder: `python scripts/docs_site.py DIR` (`make docs` builds the site of them).

These are the pages of docs/, those of the checkout's root, the examples' page, and the reference, which is made from the code. The pages stay as
they read in a checkout. On their way links to files outside docs/ are turned to what the site has, and the words that tests
read after a block's language are removed.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from router.gateway.app import create_app
from router.gateway.service import Gateway

ROOT = Path(__file__).resolve().parents[1]
#: The name on the site of each page outside docs/.
OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
}
#: The modules that those read who add a policy, a predictor or an engine.
MODULES = {
    "What plug-ins implement": "router.core.interfaces",
    "What they are given": "router.core.types",
    "Instances": "router.core.state",
    "Kinds of engines": "backends.kind",
    "Errors": "router.core.errors",
}
_LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```\w+) [^\n]*$", re.M)


def gather(site: Path) -> None:
    """Write all pages, and the files that they link to, into an empty folder."""
    shutil.copytree(ROOT / "docs", site)
    for source, page in OUTSIDE.items():
        (site / page).write_text(_page(ROOT / source, site, page), encoding="utf-8")
    for source in sorted((ROOT / "docs").glob("*.md")):
        (site / source.name).write_text(_page(source, site, source.name), encoding="utf-8")
    (site / "reference").mkdir()
    (site / "reference/http.md").write_text("\n".join(http_reference()), encoding="utf-8")
    (site / "reference/python.md").write_text("\n".join(python_reference()), encoding="utf-8")


def _page(source: Path, site: Path, page: str) -> str:
    folder = source.parent.relative_to(ROOT).as_posix()

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        target = OUTSIDE.get(path) or path.removeprefix("docs/")
        if target == path:  # a file of the checkout that is no page
            target = f"source/{path}"
            (site / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, site / target)
        return f"]({posixpath.relpath(target, posixpath.dirname(page))}{match[2] or ''})"

    return _FENCE.sub(r"\1", _LINK.sub(link, source.read_text(encoding="utf-8")))


def http_reference() -> Iterator[str]:
    """A table of the paths for each tag of the OpenAPI document."""
    document = create_app(cast(Gateway, None)).openapi()  # which calls no route
    rows: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            said = operation.get("description", operation["summary"]).split("\n\n")[0]
            cells = (f"`{method.upper()} {path}`", " ".join(said.split()), ", ".join(operation["responses"]))
            rows.setdefault(operation["tags"][0], []).append(f"| {' | '.join(cells)} |")
    yield "# Every path\n"
    yield "A gateway has this as OpenAPI 3.1 under `/openapi.json`, and as a page under `/docs`."
    yield "[HTTP API](../api.md) says what the fields mean."
    for tag, found in rows.items():
        yield f"\n## {tag.capitalize()}\n\n| path | does | answers |\n|---|---|---|"
        yield from found


def python_reference() -> Iterator[str]:
    """The docstrings of the modules that plug-ins use."""
    yield "# Interfaces in Python\n"
    yield "[Contributing](../contributing.md#adding-a-policy) shows how to add a policy, an engine kind or a predictor.\n"
    for title, module in MODULES.items():
        yield f"## {title}\n\n::: {module}\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    gather(folder)
