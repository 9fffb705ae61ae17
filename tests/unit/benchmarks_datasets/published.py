"""A small folder in the shape of the published sets."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def table(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", newline="") if packed else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def prompts(folder: Path, texts: Mapping[str, str], **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "prompts.jsonl.gz", "wt") as file:
        for name, text in texts.items():
            file.write(json.dumps({"prompt_id": name, "prompt": text, **more}) + "\n")
