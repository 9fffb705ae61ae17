"""The documentation site has every page once in its menu, and all that its pages link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.docs_site import gather
from tests.unit.docs.pages import PAGES, ROOT, links


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    gather(folder)
    return folder


def test_the_menu_names_every_page_once(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.md")}
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(named) == sorted(pages)
    assert len(pages) == len(PAGES) + 2


def test_links_lead_to_files_of_the_site(site: Path) -> None:
    for page in site.rglob("*.md"):
        for link in links(page):
            assert link.startswith(("http", "#")) or (page.parent / link.partition("#")[0]).exists(), (
                page,
                link,
            )


def test_the_reference_is_made_from_the_code(site: Path) -> None:
    paths = (site / "reference/http.md").read_text(encoding="utf-8")
    assert "| `POST /v1/chat/completions` |" in paths
    assert "| `PATCH /admin/targets` |" in paths
    assert "::: router.core.interfaces" in (site / "reference/python.md").read_text(encoding="utf-8")


def test_a_block_keeps_its_language_alone(site: Path) -> None:
    fences = re.findall(r"^```(.*)$", (site / "quickstart.md").read_text(encoding="utf-8"), re.M)
    assert {"bash", "python", "yaml"} <= set(fences)
    assert all(" " not in fence for fence in fences)
