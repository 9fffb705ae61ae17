"""How long answers are: what the model and the prompt explain, and the noise of one model that two hosts serve.

ZeroEval has several models under two hosts, all at temperature 0. A host's answer to a prompt is one draw of the model's
answers to it: hosts differ in precision and batching, which is enough to change a greedy answer. If the logs of two lengths
differ by d with variance v, one answer has the variance v / 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.datasets.public import read_public
from benchmarks.experiments import charts
from benchmarks.experiments.report import Results, Section
from benchmarks.experiments.variance import crossed
from predictors.training.dataset import Dataset

SET = "zeroeval"
#: Hosts of one model, and its names in the set. The first one stands for the model where each has one name.
HOSTS: Mapping[str, Mapping[str, str]] = {
    "llama-3.1-405b": {
        "sambanova": "Llama-3.1-405B-Inst@sambanova",
        "together turbo": "Llama-3.1-405B-Instruct-Turbo",
        "hyperbolic": "Meta-Llama-3.1-405B-Instruct@hyperbolic",
        "together fp8": "Llama-3.1-405B-Inst-fp8",
    },
    "llama-3.1-70b": {
        "vllm": "Meta-Llama-3.1-70B-Instruct",
        "hyperbolic": "Meta-Llama-3.1-70B-Instruct@hyperbolic",
    },
}
#: Spread (sigma of the logarithm) of one answer's length beside its model's and prompt's, in place of data: ZeroEval's
#: pairs of hosts, all tasks together, as this module measures it.
USUAL_SIGMA = 0.30

#: Output tokens by prompt, by task and model.
Lengths = Mapping[tuple[str, str], Mapping[str, int]]
Logs = npt.NDArray[np.float64]


class Pair(NamedTuple):
    """Two hosts of one model on the prompts of a task that both answered: `logs` of the first length over the second."""

    model: str
    task: str
    hosts: tuple[str, str]
    logs: Logs


def section(data: Path) -> tuple[Section, Logs]:
    """The section, and the log noise of single answers to draw from."""
    lengths = _lengths(read_public(data, (SET,)))
    pairs = list(_pairs(lengths))
    noise = answer_noise(pairs)
    shares = {
        task: _shares(lengths, task, float(answer_noise([each for each in pairs if each.task == task]).var()))
        for task in dict.fromkeys(each.task for each in pairs)
    }
    text = [
        "Variances are of log output tokens. One model's answers under two hosts, at temperature 0, give the noise of one"
        f" answer: {noise.std():.2f} (sigma of the logarithm) over {len(noise):,} pairs, without the mean difference of two"
        " hosts. No predictor that sees only prompt and model can explain this part.",
        "This noise was measured on two models. It is an upper bound, because hosts may also differ in the form of the prompt."
        " Where it is larger than what model and prompt leave over, the pair of both has no share.",
        "The other shares are of all models that answered all prompts of a task, each model counted once: what the model"
        " explains, what the prompt explains for all models alike, and what the pair of both explains.",
    ]
    found = Section(
        "The length of answers",
        text,
        [
            Results.of(
                "The same prompt and model under two hosts",
                [
                    {
                        "model": each.model,
                        "task": each.task,
                        "hosts": " / ".join(each.hosts),
                        "prompts": len(each.logs),
                        "mean log ratio": float(each.logs.mean()),
                        "sigma of the log ratio": float(each.logs.std(ddof=1)),
                        "equal (%)": float(100 * (each.logs == 0).mean()),
                    }
                    for each in pairs
                ],
            ),
            Results.of(
                "Share of the variance of log output tokens",
                [{"task": task, **found} for task, found in shares.items()],
            ),
        ],
        [
            charts.lanes(
                "answer_length_hosts",
                "Output tokens of one model under two hosts, over each other: median and 5 % to 95 %",
                "output tokens under one host / under the other",
                _lanes(pairs),
                log=True,
            ),
            charts.stacked(
                "answer_length_shares",
                "What the length of an answer depends on",
                "share of the variance of log output tokens (%)",
                shares,
            ),
        ],
    )
    return found, noise


def _lengths(data: Dataset) -> Lengths:
    tasks = {each.id: each.task or "" for each in data.prompts}
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for each in data.answers:
        if each.output_tokens:
            found[tasks[each.prompt], each.model][each.prompt] = each.output_tokens
    return found


def _pairs(lengths: Lengths) -> Iterator[Pair]:
    for model, names in HOSTS.items():
        for task in dict.fromkeys(task for task, _ in lengths):
            for hosts in combinations(names, 2):
                first, second = (lengths.get((task, names[host]), {}) for host in hosts)
                both = sorted(first.keys() & second.keys())
                if both:
                    logs = np.log([first[prompt] / second[prompt] for prompt in both])
                    yield Pair(model, task, hosts, logs)


def answer_noise(pairs: list[Pair]) -> Logs:
    """The noise of single answers: differences of two hosts without their mean, over the square root of 2."""
    return np.asarray(np.concatenate([each.logs - each.logs.mean() for each in pairs]) / np.sqrt(2))


def _shares(lengths: Lengths, task: str, noise: float) -> dict[str, float]:
    """Over the full table of a task: each model under its first name, and the prompts that all of them answered."""
    further = {name for names in HOSTS.values() for name in list(names.values())[1:]}
    models = {model: found for (of, model), found in lengths.items() if of == task and model not in further}
    most = max(map(len, models.values()))
    models = {model: found for model, found in models.items() if len(found) >= 0.98 * most}
    prompts = sorted(set.intersection(*(set(found) for found in models.values())))
    table = np.log([[found[prompt] for prompt in prompts] for found in models.values()])
    names = {"rows": "model", "columns": "prompt", "pair": "pair of both", "noise": "noise of one answer"}
    return {names[name]: share for name, share in crossed(table, noise).items()}


def _lanes(pairs: list[Pair]) -> dict[str, list[charts.Lane]]:
    rows: dict[str, list[charts.Lane]] = {}
    for each in pairs:
        middle, low, high = np.exp(np.quantile(each.logs, (0.5, 0.05, 0.95))).tolist()
        rows.setdefault(f"{each.model}, {each.task}", []).append((" / ".join(each.hosts), middle, low, high))
    return rows
