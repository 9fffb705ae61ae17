"""Unlike models: what size and format of the weights cost in memory and time, and what they bring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from backends.engine import profiles
from backends.engine.models import MODELS
from backends.engine.profiles import name_of
from benchmarks.datasets.public import read_public
from benchmarks.experiments import charts
from benchmarks.experiments.hardware import decode_per_s, speeds
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.workloads.published import EMPTY, Positive, Record, table

GPU = "a100-80g"
#: Formats of weights by the suffix of profiles' names.
FORMATS = {"16 bits": "", "FP8": "-fp8", "4 bits (AWQ)": "-int4", "Q4_K_M (llama.cpp)": "-q4"}
SET = "zeroeval"
#: The share of the prompts that a model must have answered to be shown: else it was not run on all tasks.
_LEAST_SHARE = 0.95
#: The set has the parameters of one of its experts.
_EXPERTS = {"Mixtral-8x7B-Instruct-v0.1"}


def sections(data: Path | None) -> Iterator[Section]:
    """Speed and memory by the engine profiles; from data, how right and how long the answers are."""
    yield _speed()
    if data is not None and (data / SET).is_dir():
        yield _answers(data)


def _speed() -> Section:
    rows: list[dict[str, Value]] = []
    series: dict[str, list[tuple[float, float, str]]] = {}
    for model in MODELS:
        for text, suffix in FORMATS.items():
            name, gpus = _smallest(f"{model}{suffix}")
            row: dict[str, Value] = {"model": model, "format": text}
            if name is None:
                rows.append(row)
                continue
            weights_gb = profiles.weights_bytes(name) / 1e9
            rows.append({**row, "weights (GB)": weights_gb, "GPUs": gpus, **speeds(name)})
            series.setdefault(text, []).append((weights_gb, decode_per_s(name, 1), model))
    return Section(
        "Model size and quantisation: memory and speed",
        [
            f"By Headway's engine profiles on as few {GPU} as hold the weights and 4,096 tokens. Formats of fewer bits read fewer"
            " bytes in each step, so one sequence decodes faster; prefill computes in 16 bits on this GPU and gains little.",
        ],
        [Results.of(f"Models and formats of weights on the {GPU}", rows)],
        [
            charts.points(
                "models_speed",
                "Decode speed of one sequence by bytes of the weights: each point is a model in a format",
                "weights (GB)",
                "tokens/s of one sequence",
                series,
                log_y=True,
            )
        ],
    )


def _smallest(model: str) -> tuple[str | None, int]:
    """The profile on the fewest GPUs, and how many."""
    for gpus in profiles.TENSOR_DEGREES:
        name = name_of(model, GPU, gpus)
        if profiles.find(name) is not None:
            return name, gpus
    return None, 0


class _Model(Record):
    model: str
    params_b: Annotated[Positive | None, EMPTY] = None


def params_b(data: Path) -> dict[str, float | None]:
    """Billions of parameters by the set's models, None where that is not known."""
    return {row.model: row.params_b for row in table(data / SET / "models.csv", _Model)}


def _answers(data: Path) -> Section:
    found = read_public(data, (SET,))
    right: dict[str, list[float]] = defaultdict(list)
    tokens: dict[str, list[int]] = defaultdict(list)
    families: dict[str, str] = {}
    for each in found.answers:
        families[each.model] = each.family or "other"
        if each.quality is not None:
            right[each.model].append(each.quality)
        if each.output_tokens is not None:
            tokens[each.model].append(each.output_tokens)
    least = _LEAST_SHARE * max(map(len, right.values()))
    rows: list[list[Value]] = []
    quality: dict[str, list[tuple[float, float, str]]] = {}
    length: dict[str, list[tuple[float, float, str]]] = {}
    for model, size in sorted(params_b(data).items(), key=lambda one: (one[1] or 0.0, one[0])):
        if size is None or model in _EXPERTS or len(right[model]) < least or not tokens[model]:
            continue
        percent = 100 * sum(right[model]) / len(right[model])
        mean = sum(tokens[model]) / len(tokens[model])
        rows.append([model, size, len(right[model]), percent, mean])
        family = families[model] if families[model] in ("llama", "qwen") else "others"
        quality.setdefault(family, []).append((size, percent, model))
        length.setdefault(family, []).append((size, mean, model))
    return Section(
        "Model size, measured: how right and how long answers are",
        [
            "ZeroEval (GSM8K, MATH level 5, CRUXEval), greedy answers of the models that were run on all three tasks and whose"
            " size is known.",
        ],
        [
            Results(
                "Models by size",
                ("model", "parameters (billions)", "answers", "right (%)", "mean output tokens"),
                rows,
            )
        ],
        [
            charts.points(
                name, caption, "parameters (billions)", y_name, series, named=[str(row[0]) for row in rows]
            )
            for name, caption, y_name, series in (
                ("models_quality", "Right answers by size of the model", "right answers (%)", quality),
                ("models_length", "Length of answers by size of the model", "mean output tokens", length),
            )
        ],
    )
