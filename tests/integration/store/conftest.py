from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counter files of stores over PostgreSQL lie in the test's own directory."""
    monkeypatch.chdir(tmp_path)
