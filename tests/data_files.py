"""Files of data in the forms in which sets are published."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any


def put(path: Path, content: str | Sequence[Mapping[str, Any]]) -> Path:
    """Write a text, or rows in the form that the file's name tells: CSV, JSON lines or a JSON list; packed for .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        text = content
    elif ".csv" in path.suffixes:
        file = StringIO()
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in content for name in row)))
        writer.writeheader()
        writer.writerows(content)
        text = file.getvalue()
    elif ".jsonl" in path.suffixes:
        text = "".join(json.dumps(row) + "\n" for row in content)
    else:
        text = json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
