from pathlib import Path

import pytest

from tests.records import make_decision, make_record

__all__ = ["make_decision", "make_record"]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counter files of stores over PostgreSQL lie in the test's own directory."""
    monkeypatch.chdir(tmp_path)
