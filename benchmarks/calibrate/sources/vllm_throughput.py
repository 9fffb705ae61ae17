"""vLLM throughput by batch size: 20 code models on 1 to 8 A100 or V100 ("tesla") GPUs.

github.com/UPCBarcelonaTech/infpop, the appendix of arXiv 2408.01050 (no licence). Its script runs the single-line
prompts of HumanEval-Infilling in batches, one batch after another, and each prompt gets five tokens. So prefill and
the fixed time of a step dominate. The table shows little of steady decode: the decode terms of a fitted profile are
assumptions. Use it for prefill and for the ratio between the kinds of GPU.

An engine is a model on some GPUs of one kind, a level is a batch size. A level has one measured time, the batch's:
all its requests arrive at 0, and the last one has E2E. Two other predictions of the held-out batch sizes stand beside
the engine model's:

- curve: throughput(b) = b' / (t0 + t1 b') with b' = min(b, cap), fitted to the fitted batch sizes of the engine.
- ratio: for V100, the A100's time at this batch size times the median ratio of the other models on as many GPUs, at
  the neighbouring fitted batch sizes. It uses no V100 row of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import NamedTuple

import numpy as np

from backends.engine import profile
from backends.engine.profiles import name_of
from benchmarks.calibrate.lines import line
from benchmarks.calibrate.measured import Level, Measured, Split, Splitter, Study
from benchmarks.calibrate.profile import CHUNKED, Constants
from benchmarks.workloads.format import WorkloadError
from benchmarks.workloads.published import AtLeastOne, Positive, Record, table
from router.core.profile import EngineProfile

FILE = "vllm_throughput_a100_tesla.csv"
#: Kinds of GPU by Headway's names. The table has no memory sizes; 13B weights in 16 bits fit on one V100.
A100, V100 = "a100-80g", "v100-32g"
#: Tokens of a prompt: assumed, the table has none. Time per token scales with it; time per prompt does not.
PROMPT_TOKENS = 200
OUTPUT_TOKENS = 5
#: vLLM's defaults in 2024: whole prompts in steps of 2,048 tokens, 256 sequences.
BUDGET_TOKENS, MAX_SEQS = 2048, 256
#: A smaller cap than MAX_SEQS must reduce the curve's mean error to this share: a saturated curve has no clear cap.
_CLEARLY_BETTER = 0.8
#: A curve's cap below this is the engine's limit of sequences, for lack of memory. A larger one only says that the curve
#: is flat, and an engine may still decode more sequences at once.
_FEW_SEQS = 8
#: The registered model whose attention and KV terms stand in for those that the table cannot show.
_ATTENTION_OF = "llama-3.1-8b"
_OVERHEAD_SHARE = 0.3
_BLOCK_TOKENS = 16

#: Seconds of a batch by batch size.
Batches = Mapping[int, float]
#: Engines by model, number of GPUs and kind of GPU.
Engines = Mapping[tuple[str, int, str], Batches]


class Row(Record):
    """A row of the table. Throughput is generated tokens per second."""

    model: str
    nr_gpus: AtLeastOne
    batch_size: AtLeastOne
    throughput_a100: Positive
    throughput_tesla: Positive
    status_a100: str
    status_tesla: str

    def ratio(self) -> float:
        """A100 over V100 throughput."""
        return self.throughput_a100 / self.throughput_tesla


class Curve(NamedTuple):
    """Seconds of one token of every sequence: t0_s + t1_s for each of at most `cap` sequences."""

    t0_s: float
    t1_s: float
    cap: int

    def batch_s(self, batch: int) -> float:
        """Seconds of a batch."""
        together = min(batch, self.cap)
        return OUTPUT_TOKENS * batch / together * (self.t0_s + self.t1_s * together)


def rows(data: Path) -> Iterator[Row]:
    """The rows in which both kinds of GPU ran."""
    return (row for row in table(data / FILE, Row) if row.status_a100 == row.status_tesla == "ok")


def read(data: Path, split: Splitter) -> list[Study]:
    """A study for each model, number of GPUs and kind of GPU."""
    engines: dict[tuple[str, int, str], dict[int, float]] = {}
    for row in rows(data):
        for kind, throughput in ((A100, row.throughput_a100), (V100, row.throughput_tesla)):
            batches = engines.setdefault((row.model.lower(), row.nr_gpus, kind), {})
            if row.batch_size in batches:
                raise WorkloadError(f"{data / FILE}: {row.model} has batch size {row.batch_size} twice")
            batches[row.batch_size] = OUTPUT_TOKENS * row.batch_size / throughput
    studies = [_study(engine, engines, split) for engine in sorted(engines) if len(engines[engine]) >= 3]
    if not studies:
        raise WorkloadError(f"{data / FILE}: no engine with three batch sizes or more")
    return studies


def fit_curve(batches: Batches) -> Curve:
    """The curve with the least mean relative error of the batch times, where a cap below MAX_SEQS must pay."""
    found: list[tuple[float, Curve]] = []
    for cap in sorted({min(batch, MAX_SEQS) for batch in batches} | {MAX_SEQS}, reverse=True):
        together = np.array([float(min(batch, cap)) for batch in batches])
        if len(set(together.tolist())) < 2:
            continue
        token_s = [seconds / OUTPUT_TOKENS / batch for batch, seconds in batches.items()]
        t0_s, t1_s, _ = line(together, np.array(token_s) * together)
        curve = Curve(max(t0_s, 1e-6), max(t1_s, 1e-9), cap)
        error = fmean(abs(curve.batch_s(batch) / seconds - 1) for batch, seconds in batches.items())
        if not found or error < _CLEARLY_BETTER * found[0][0]:
            found.append((error, curve))
    return min(found)[1]


def _study(engine: tuple[str, int, str], engines: Engines, split: Splitter) -> Study:
    model, gpus, kind = engine
    batches = dict(sorted(engines[engine].items()))
    parts = split([str(batch) for batch in batches])
    curve = fit_curve({int(name): batches[int(name)] for name in parts.fit})
    checks = {"curve": tuple(curve.batch_s(int(name)) / batches[int(name)] for name in parts.test)}
    notes = [
        "prefill dominates: the terms of decode are assumptions, and prompts are assumed to have "
        f"{PROMPT_TOKENS} tokens"
    ]
    other = engines[model, gpus, V100 if kind == A100 else A100]
    if all(abs(other[batch] / seconds - 1) < 0.01 for batch, seconds in batches.items()):
        notes.append("A100 and V100 have the same times within 1 %: one column may be a copy of the other")
    if kind == V100:
        checks["ratio"] = tuple(_by_ratio(engine, engines, parts))
    max_seqs = curve.cap if curve.cap < _FEW_SEQS else MAX_SEQS
    prompt_blocks = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // _BLOCK_TOKENS)
    return Study(
        name_of(model, kind, gpus),
        {str(batch): _level(batch, seconds) for batch, seconds in batches.items()},
        parts,
        {
            CHUNKED: (False,),
            "max_batched_tokens": (BUDGET_TOKENS,),
            "max_seqs": (max_seqs,),
            # What the most sequences occupied: the table does not show more.
            "kv_capacity_tokens": (max_seqs * prompt_blocks * _BLOCK_TOKENS,),
        },
        notes=(*notes, f"curve: t0 {curve.t0_s:.4g} s, t1 {curve.t1_s:.4g} s, cap {curve.cap}"),
        first=_first(name_of(model, kind, gpus), name_of(_ATTENTION_OF, kind, gpus), curve),
        checks=checks,
        groups=("all", kind, model),
    )


def _level(batch: int, seconds: float) -> Level:
    unknown = Measured(0.0, PROMPT_TOKENS, OUTPUT_TOKENS)
    last = replace(unknown, e2e_s=seconds)
    return Level(str(batch), (*[unknown] * (batch - 1), last))


def _first(name: str, attention_of: str, curve: Curve) -> Constants:
    """Constants that give about the curve: t0 is a step's fixed time, t1 a prompt's share of prefill."""
    known = profile(attention_of)
    overhead_s = _OVERHEAD_SHARE * curve.t0_s
    prompt_s = OUTPUT_TOKENS * curve.t1_s - overhead_s * PROMPT_TOKENS / BUDGET_TOKENS
    per_token_s = max(prompt_s, OUTPUT_TOKENS * curve.t1_s / 2) / PROMPT_TOKENS
    return Constants(
        EngineProfile(
            name=name,
            overhead_s=overhead_s,
            floor_s=curve.t0_s - overhead_s,
            per_token_s=0.95 * per_token_s,
            per_kv_token_s=known.per_kv_token_s,
            per_pair_s=known.per_pair_s,
            kv_capacity_tokens=known.kv_capacity_tokens,
            per_token_extra_s=0.05 * per_token_s,
            per_seq_s=1e-6,
            load_s=known.load_s,
            source=f"fitted by headway calibrate to batches of short answers; attention as of {_ATTENTION_OF}",
        ),
        client_overhead_s=1e-6,
        client_per_stream_s=1e-9,
    )


def _by_ratio(engine: tuple[str, int, str], engines: Engines, parts: Split) -> Iterator[float]:
    """Predicted over measured time of the held-out batch sizes; nothing without another model on as many GPUs."""
    model, gpus, _ = engine
    others = [each for each, count, kind in engines if each != model and count == gpus and kind == V100]
    fitted = sorted(map(int, parts.fit))
    for batch in map(int, parts.test):
        near = _neighbours(batch, fitted)
        ratios = [
            geometric_mean(engines[each, gpus, V100][at] / engines[each, gpus, A100][at] for at in near)
            for each in others
            if all(at in engines[each, gpus, V100] for at in near)
        ]
        if ratios:
            yield engines[model, gpus, A100][batch] * median(ratios) / engines[engine][batch]


def _neighbours(batch: int, fitted: Sequence[int]) -> list[int]:
    below, above = [at for at in fitted if at < batch], [at for at in fitted if at > batch]
    return below[-1:] + above[:1]
