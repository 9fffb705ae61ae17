"""The shipped predictors beside the best simple ones, as Markdown, from the figures that the artifacts carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.compare.tables import three_digits
from benchmarks.pages import marked

#: What is predicted, the artifact's kind, and of its figures the name, the predictor and the simple one.
_ROWS = (
    ("output length (tokens)", "length", "MAE", "LSTM", "TF-IDF + ridge on log length"),
    ("right or wrong, from the prompt", "relevance", "AUC", "relevance", "TF-IDF + logistic regression"),
    ("KV memory in use (share)", "memory", "MAE", "memory model", "closed form"),
)


def table(abouts: Mapping[str, Mapping[str, Any]]) -> str:
    """`abouts`: by kind, what the artifact says about itself."""
    rows = []
    for what, kind, name, ours, simple in _ROWS:
        found = {
            each["of"]: each
            for each in abouts[kind]["metrics"]
            if each["name"] == name and each["part"] == "all"
        }
        less = found[f"{ours} - {simple}"]
        rows.append(
            {
                "": what,
                "figure": name,
                "shipped": three_digits(found[ours]["value"]),
                "simple": f"{three_digits(found[simple]['value'])} ({simple})",
                "difference": f"{less['value']:+.3g} [{less['low']:+.3g}, {less['high']:+.3g}]",
            }
        )
    return marked.table_of(rows)
