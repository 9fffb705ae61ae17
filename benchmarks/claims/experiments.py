"""What the pages show of `headway experiment` and of a training of the latency model, and what is kept of them for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.experiments.report import Value, shown
from benchmarks.pages import marked
from predictors.learned.models import KINDS

#: By experiment: `commit`, and `tables` by title, with `columns` and `rows`.
KEPT = "docs/experiments.json"
#: Not of `headway experiment`: the latency model, trained as the shipped one is.
LATENCY_MODEL = "latency-model"
#: By experiment, where it is not docs/experiments.md.
PAGES = {LATENCY_MODEL: "docs/predictions.md"}
#: By how much a figure may differ where it is measured again: of itself, or in all.
_SHARE, _LEAST = 0.02, 0.005
#: Of itself, if it is of what is fitted anew. Fits differ between CPUs, and what follows from two of them is not compared.
_FITTED, _FITTED_SHARE, _OF_TWO = ("LSTM", "trees", "combined"), 0.2, "less that of"
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Part of a table, as the page shows it: of the rows whose values are `where`, the columns `rows`. With `across` there is
    one row for all that have these in common, and for each value of `across` a `cell`: a format of the columns `of`."""

    table: str
    rows: Sequence[str]
    across: Sequence[str] = ()
    cell: str = ""
    of: Sequence[str] = ()
    where: Mapping[str, Collection[Value]] = field(default_factory=dict)

    def text(self, table: Mapping[str, Any]) -> str:
        cells: dict[tuple[str, ...], dict[str, str]] = {}
        for row in (dict(zip(table["columns"], row, strict=True)) for row in table["rows"]):
            if all(row[name] in these for name, these in self.where.items()):
                own = cells.setdefault(tuple(shown(row[name]) for name in self.rows), {})
                if self.across:
                    values = (row[name] for name in self.of)
                    own[", ".join(row[name] for name in self.across)] = self.cell.format(*values).replace(
                        " (None)", ""
                    )
        columns = list(dict.fromkeys(column for own in cells.values() for column in own))
        lines = ([*names, *(own.get(column, "-") for column in columns)] for names, own in cells.items())
        return marked.table([*self.rows, *columns], lines)


def excerpt(experiment: str, name: str, results: Mapping[str, Any]) -> str:
    """What stands between the marks of this name."""
    chosen = EXCERPTS[experiment][name]
    return chosen.text(results[experiment]["tables"][chosen.table])


def provenance(results: Mapping[str, Any]) -> str:
    """The commits that the experiments are of."""
    return "\n".join(f"- `{name}`: commit `{found['commit'][:7]}`" for name, found in results.items())


def measured(experiment: str) -> dict[str, Any]:
    """What the page shows of it, from a run. Raises CalledProcessError."""
    with TemporaryDirectory(prefix="headway-claims-") as folder:
        if experiment == LATENCY_MODEL:
            return kept(_latency_model(Path(folder)))
        command = [sys.executable, "-m", "router.cli", "experiment", experiment, "--out", folder]
        subprocess.run(command, check=True)  # noqa: S603
        return kept(json.loads((Path(folder) / "results.json").read_text(encoding="utf-8")))


def _latency_model(folder: Path) -> dict[str, Any]:
    """How accurate it is on load levels that training left out, in the form of an experiment's `results.json`."""
    from benchmarks.training.defaults import HELD_OUT, SEED, data_for
    from benchmarks.training.train import train_and_evaluate

    kind = KINDS["latency"]
    data = data_for(kind, os.environ)
    about = train_and_evaluate(kind, data, folder, seed=SEED, held_out=HELD_OUT).artifact.about
    rows = [[each[name] for name in ("name", "part", "of", "value")] for each in about["metrics"]]
    table = {"title": LATENCY_MODEL, "columns": ["figure", "data", "predictor", "value"], "rows": rows}
    return {"experiment": LATENCY_MODEL, "commit": about["commit"], "sections": [{"tables": [table]}]}


def kept(report: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a `results.json` that the page shows, with five digits of each number."""
    titles = {each.table for each in EXCERPTS[report["experiment"]].values()}
    tables = (table for section in report["sections"] for table in section["tables"])
    return {
        "commit": report["commit"],
        "tables": {
            table["title"]: {
                "columns": table["columns"],
                "rows": [[_rounded(value) for value in row] for row in table["rows"]],
            }
            for table in tables
            if table["title"] in titles
        },
    }


def _rounded(value: Value) -> Value:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The figures that both have and that differ, one line each. Without published sets `new` has fewer figures."""
    for title, table in new["tables"].items():
        before = dict(_named(old["tables"][title]))
        for name, row in _named(table):
            fitted = any(word in text for word in _FITTED for text in name)
            share = _FITTED_SHARE if fitted else _SHARE
            for column, was in before[name].items():
                if not isinstance(was, int | float) or (fitted and _OF_TWO in column):
                    continue
                now = row[column]
                if abs(now - was) > max(_LEAST, share * abs(was)):
                    yield f"{title}, {' '.join(name)}: {column}: {was:g} is told, {now:g} measured"


def _named(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Each row by its texts, and of several with the same ones by its number. An interval is not one of the texts."""
    seen = Counter[tuple[str, ...]]()
    for values in table["rows"]:
        row = dict(zip(table["columns"], values, strict=True))
        texts = tuple(
            value for column, value in row.items() if isinstance(value, str) and "interval" not in column
        )
        seen[texts] += 1
        yield (*texts, str(seen[texts])), row


_ACCURACY = ("median relative error", "pinball loss", "coverage at 0.9")
_R2 = "Share of the variance that each predictor explains (R²)", ("quantity", "source"), ("predictor",)
_R2_CELL = "{:.2f} ({:.2f})", ("of all variance", "inside a run")
_LOSS = "{:.3f}", ("TTFT: pinball loss",)
_LOSSES = "{:.3f}, {:.3f}", ("TTFT: pinball loss", "TPOT: pinball loss")
_FIT, _BY = ("predictor", "fitted to"), ("predictor",)
_GOODPUT = ("predictor",), ("fleet", "policy"), "{:.1f} ({})", ("attainment (%)", "95 % interval")
#: By experiment and the name of the marks.
EXCERPTS: Mapping[str, Mapping[str, Excerpt]] = {
    "unpredictability": {
        "same-request": Excerpt(
            "Share of the variance of log latency that the instance explains",
            ("latency and load", "between instances", "within an instance"),
        ),
        "equal-lengths": Excerpt(
            "Requests of equal length on a100-0: share of the variance of log latency that lengths explain",
            *(("latency",), ("load",)),
            *("{:.2f} ({:.2f})", ("input length", "input and output length")),
        ),
        "lengths-explained": Excerpt(
            "Share of the variance of log output tokens",
            ("task", "model", "prompt", "pair of both", "noise of one answer"),
        ),
        "r2-times": Excerpt(
            *(*_R2, *_R2_CELL),
            {
                "quantity": ("TTFT", "TPOT"),
                "predictor": ("physical estimate", "LSTM", "boosted trees"),
                "seen in training": ("no",),
            },
        ),
        "r2-lengths": Excerpt(*_R2, *_R2_CELL, {"quantity": ("output tokens",)}),
    },
    "heterogeneity": {
        "slo-classes": Excerpt(
            "Requests/s with 95% in time",
            ("instance", *(f"{name} (requests/s)" for name in ("capacity", "tight", "normal", "loose"))),
        ),
        "a100-v100": Excerpt(
            "A100 over V100: median and quartiles of the models' throughput ratios",
            ("batch size", "models", "median ratio", "lower quartile", "upper quartile"),
            where={"GPUs": (1,)},
        ),
        "engines": Excerpt(
            "llama-3.1-8b on one a100-80g",
            ("engine", "requests/s", "TTFT p50 (s)", "TPOT p50 (s)", "TPOT p95 (s)"),
            where={"requests/s": (1.0, 2.0, 6.0)},
        ),
    },
    "training": {
        "families": Excerpt("Latency predictors by family", _FIT, ("judged on",), *_LOSS),
        "curve": Excerpt(
            "Latency predictors by the size of their training data", ("fitted to",), _BY, *_LOSS
        ),
        "never-seen": Excerpt(
            "Latency predictors at what they were not fitted to", ("fitted to",), _BY, *_LOSSES
        ),
        "logs": Excerpt("Latency predictors on published logs", _FIT, ("judged on",), *_LOSS),
        "lengths": Excerpt(
            "Length predictors by family and set, over the folds",
            *(("measure", "of"), ("part",)),
            *("{:.3g} ({})", ("value", "95 % interval")),
            {"measure": ("MAE", "MAE served, after 50 answers", "coverage of 80 % intervals")},
        ),
        "lengths-without": Excerpt(
            "The length predictor without parts of its data",
            *(("fitted to",), ("judged on",)),
            *("{:.0f}, {:.0f}", ("MAE (tokens)", "MAE served, after 50 answers")),
        ),
        "goodput-lengths": Excerpt(
            *("Goodput: lengths of answers", *_GOODPUT),
            {
                "fleet": tuple(
                    f"{fleet}, E2E targets" for fleet in ("ZeroEval", "mixed fleet", "unequal GPUs")
                )
            },
        ),
        "goodput-parts": Excerpt("Goodput: parts of the latency predictor", *_GOODPUT),
    },
    LATENCY_MODEL: {
        "latency-accuracy": Excerpt(
            *(LATENCY_MODEL, ("figure", "data"), ("predictor",), "{:.3f}", ("value",)),
            {
                "figure": tuple(f"{time} {figure}" for time in ("TTFT", "TPOT") for figure in _ACCURACY),
                "predictor": ("physical estimate", "LSTM", "combined"),
            },
        )
    },
}
