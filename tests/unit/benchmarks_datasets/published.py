"""A small folder in the shape of the published sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.data_files import put


def prompts(folder: Path, texts: Mapping[str, str], **more: Any) -> None:
    rows = [{"prompt_id": name, "prompt": text, **more} for name, text in texts.items()]
    put(folder / "prompts.jsonl.gz", rows)
