"""Makes the artifacts that come with Headway: python -m benchmarks.training.defaults [--out DIR] [KIND ...]

They are trained only on what may be: our own emulated fleets, and published sets whose terms allow it, of these
only open models' answers. `ALLOWED` says which, `only_allowed` lets nothing else through. Prompt sets come from
the folder HEADWAY_DATA or from their originals, which are downloaded; engines' logs from the folder alone,
without it the emulated fleets must do. The same data give the same bytes on one machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets.emulated import SOURCE as EMULATED
from benchmarks.datasets.emulated import emulate
from benchmarks.datasets.public import present, read_public
from benchmarks.evaluate.report import text
from benchmarks.terminal import shown_progress, status_of
from benchmarks.training.originals import MIXTRAL, read_originals
from benchmarks.training.train import train_and_evaluate
from predictors.learned.artifact import SHIPPED, ArtifactError
from predictors.learned.models import KINDS, ArtifactKind
from predictors.training.dataset import Dataset, DatasetError, joined

_BOTH_TASKS = (
    *("Athene-70B", "Meta-Llama-3-70B-Instruct", "Meta-Llama-3-8B-Instruct", "Meta-Llama-3.1-70B-Instruct"),
    *("Meta-Llama-3.1-8B-Instruct", "Mixtral-8x7B-Instruct-v0.1", "Phi-3.5-mini-instruct"),
    *("Qwen2-72B-Instruct", "Qwen2-7B-Instruct", "Yi-1.5-34B-Chat", "Yi-1.5-9B-Chat", "gemma-2-2b-it"),
    "gemma-2-9b-it",
)
#: Open models of ZeroEval that ran on vLLM, Hugging Face or Together, by task.
OPEN_MODELS: Mapping[str, frozenset[str]] = {
    "gsm": frozenset(
        {
            *_BOTH_TASKS,
            *("Llama-3.1-405B-Instruct-Turbo", "Mistral-Nemo-Instruct-2407", "gemma-2-27b-it@together"),
        }
    ),
    "crux": frozenset(
        {
            *_BOTH_TASKS,
            *("Llama-3.1-405B-Inst-fp8", "Phi-3-mini-4k-instruct", "Qwen2.5-32B-Instruct"),
            *("Qwen2.5-3B-Instruct", "Qwen2.5-72B-Instruct", "Qwen2.5-7B-Instruct", "gemma-2-27b-it"),
        }
    ),
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What of a source may be trained on: `tasks` and `models` (None: all)."""

    tasks: frozenset[str] | None = None
    models: frozenset[str] | None = None


#: Never: alpaca_eval, arena_2023, llmrouter, ZeroEval's math-l5, and closed models' answers.
ALLOWED: Mapping[str, Allowed] = {
    EMULATED: Allowed(),
    "vllm_burst": Allowed(),
    "aibrix": Allowed(),
    "helix": Allowed(),
    "zeroeval": Allowed(frozenset(OPEN_MODELS), frozenset().union(*OPEN_MODELS.values())),
    "routellm": Allowed(None, frozenset({MIXTRAL})),
}
PROMPT_SOURCES = ("zeroeval", "routellm")
LOG_SOURCES = ("vllm_burst", "aibrix")
SEED = 1
HELD_OUT = 0.2
MOST_BYTES = 5_000_000
#: Emulated worlds: with a fifth of them the error on worlds never seen is a quarter larger.
WORLDS = 320


def only_allowed(data: Dataset) -> Dataset:
    """What of a data set may be trained on; `about` has the limits."""

    def is_allowed(source: str, task: str | None, model: str) -> bool:
        terms = ALLOWED.get(source)
        return (
            terms is not None
            and (terms.tasks is None or task in terms.tasks)
            and (terms.models is None or model in terms.models)
        )

    prompts = {each.id: each for each in data.prompts}
    answers = tuple(
        each
        for each in data.answers
        if is_allowed(prompts[each.prompt].source, prompts[each.prompt].task, each.model)
    )
    answered = {each.prompt for each in answers}
    kept = data.keep(prompt=lambda each: each.id in answered, run=lambda each: each.source in ALLOWED)
    sources = [
        {**source, "limited_to": _limits(ALLOWED[source["name"]])}
        for source in data.about.get("sources", ())
        if source["name"] in ALLOWED
    ]
    return Dataset(kept.prompts, answers, kept.runs, kept.attempts, kept.states, {"sources": sources})


def _limits(terms: Allowed) -> dict[str, list[str]]:
    found = {"tasks": terms.tasks, "models": terms.models}
    return {name: sorted(values) for name, values in found.items() if values is not None}


def data_for(kind: ArtifactKind, environment: Mapping[str, str]) -> Dataset:
    """What the shipped artifact of a kind is trained on."""
    folder = Path(environment["HEADWAY_DATA"]) if environment.get("HEADWAY_DATA") else None
    if kind.of_prompts:
        if folder is None:
            return only_allowed(read_originals(OPEN_MODELS, environment))
        return only_allowed(read_public(folder, PROMPT_SOURCES))
    parts = [emulate(seed=SEED, runs=WORLDS)]
    if folder is not None and (logs := present(folder, LOG_SOURCES)):
        parts.append(read_public(folder, logs))
    return only_allowed(joined(parts))


def main(argv: Sequence[str] | None = None) -> int:
    """Train all, or the kinds named; exit status 0, 1 if they are too large to ship, 2 for data not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.defaults", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (all)")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="DIR", help="(where they are shipped)")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.kinds if name not in KINDS]:
        parser.error(f"no predictor {unknown[0]!r}: there are {', '.join(KINDS)}")
    size = 0
    try:
        for name in args.kinds or KINDS:
            with shown_progress(f"training {name}") as progress:
                data = data_for(KINDS[name], os.environ)
                made = train_and_evaluate(
                    KINDS[name], data, args.out, seed=SEED, held_out=HELD_OUT, final=True, progress=progress
                )
            print(text(made, made.found.headline()))
            size += made.path.stat().st_size
            print(f"{made.path} ({made.path.stat().st_size / 1000:,.0f} kB)", flush=True)
    except (DatasetError, ArtifactError) as error:
        print(f"train-defaults: {error}", file=sys.stderr)
        return 2
    if size > MOST_BYTES:
        print(f"train-defaults: {size:,} bytes are more than {MOST_BYTES:,} to ship", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(status_of(main))
