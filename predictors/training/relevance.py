"""Training of the relevance model: the expected quality of (prompt, model) from the prompt's text.

1. An encoder of prompts, without labels (`prompt_vectors`).
2. Four experts (`predictors.learned.relevance`), fitted several times on all but one part of the groups of prompts, so that
   each prompt is judged by experts that saw no near copy of it. Of the experts other than the tasks, only what they say
   beyond their own mean at the task counts, so that the tasks are not counted twice.
3. From those judgements: how much each expert counts (`relevance_stack`).
4. The experts once more on everything, with these weights folded into their last layers, and their means at the tasks
   into those of the last expert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.cluster import KMeans

from predictors.kernels.reference.prompt_encoder import Encoder
from predictors.learned.artifact import Artifact
from predictors.learned.relevance import RELEVANCE_FEATURES, encoder_of
from predictors.training.dataset import Dataset, Progress, fraction_of
from predictors.training.prompt_vectors import Arrays, fit_encoder
from predictors.training.relevance_experts import departures_without_tasks, fit_experts, task_shares
from predictors.training.relevance_labels import Labels, labels_of, scale_shifts
from predictors.training.relevance_stack import Trust, fit_trust

_DIRECTIONS, _MOST_GRAMS = 64, 20_000
_PARTS = 3
_CLUSTERS = 32
EXPERTS = ("network", "prototypes", "lexicon", "tasks")
#: Kept in full precision: sums of many terms.
_SINGLE = ("hidden_bias", "out_bias", "task_bias", "near", "head_prior")


def train(data: Dataset, *, seed: int = 1, progress: Progress = lambda _: None) -> Artifact:
    """The same data and seed give the same artifact. Raises DatasetError for data without quality, with too few rated
    prompts or groups of them, or with one quality throughout."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    labels = labels_of(data)
    progress(f"encoder of {len(labels.prompts)} prompts")
    grams, weights = fit_encoder(labels.prompts, seed, most_grams=_MOST_GRAMS, most_directions=_DIRECTIONS)
    # Never the compiled one: an artifact must not depend on whether there is a compiler.
    encoder = encoder_of(grams, Encoder)
    vectors = np.stack([encoder.vector(prompt.features) for prompt in labels.prompts])
    trust = fit_trust(labels, *_judged(labels, vectors, weights, seed, progress))
    progress("experts on all prompts")
    fitted = fit_experts(labels, vectors, weights, np.arange(len(labels.prompts)), seed)
    weighed = _weighed(labels, fitted, _means_of_tasks(labels, vectors, weights, fitted), trust)
    arrays = grams | _arrays(labels, fitted, weighed, seed)
    return Artifact("relevance", RELEVANCE_FEATURES, arrays, {"settings": _settings(labels, trust, seed)})


def _means_of_tasks(
    labels: Labels, vectors: np.ndarray, weights: scipy.sparse.csr_matrix, fitted: Arrays
) -> np.ndarray:
    """(experts but the tasks, T, H): the mean of an expert's departures at each task, on prompts that it was fitted on."""
    of_task = task_shares(fitted, vectors)
    departures, _ = departures_without_tasks(fitted, labels.head_scale, vectors, weights)
    return np.asarray(of_task.T @ departures / np.maximum(of_task.sum(axis=0), 1e-9)[:, None])


def _judged(
    labels: Labels, vectors: np.ndarray, weights: scipy.sparse.csr_matrix, seed: int, report: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """(prior, departures) of every prompt for `fit_trust`."""
    part = np.array([int(fraction_of(group, seed) * _PARTS) for group in labels.groups])
    prior = np.zeros(labels.quality.shape)
    departures = np.zeros((len(EXPERTS), *labels.quality.shape))
    for out in np.unique(part):
        report(f"experts without part {out + 1} of {_PARTS}")
        known, judged = np.flatnonzero(part != out), np.flatnonzero(part == out)
        fitted = fit_experts(labels, vectors, weights, known, seed)
        of_task = task_shares(fitted, vectors[judged])
        beyond, faded = departures_without_tasks(fitted, labels.head_scale, vectors[judged], weights[judged])
        beyond -= of_task @ _means_of_tasks(labels, vectors[known], weights[known], fitted)
        prior[judged] = fitted["head_prior"]
        departures[:, judged] = faded * np.concatenate([beyond, (of_task @ fitted["task_departures"])[None]])
    return prior, departures


def _weighed(labels: Labels, fitted: Arrays, means: np.ndarray, trust: list[Trust]) -> Arrays:
    """The experts with their weights in their last layers, network and lexicon side by side in one of them."""
    hidden = len(fitted["out"])
    out = np.concatenate([fitted["out"], fitted["lexicon_out"]])
    out_bias, departures, of_task = (
        fitted[name].copy() for name in ("out_bias", "departures", "task_departures")
    )
    for scale, believed in enumerate(trust):
        heads = labels.heads_on(scale)
        out[:hidden, heads] = believed.weighed(out[:hidden, heads], EXPERTS.index("network"))
        out[hidden:, heads] = believed.weighed(out[hidden:, heads], EXPERTS.index("lexicon"))
        out_bias[heads] = believed.weighed(out_bias[heads], EXPERTS.index("network")) + believed.constant
        departures[:, heads] = believed.weighed(departures[:, heads], EXPERTS.index("prototypes"))
        of_task[:, heads] = believed.weighed(of_task[:, heads], EXPERTS.index("tasks"))
        for expert, mean in enumerate(means):
            of_task[:, heads] -= believed.weighed(mean[:, heads], expert)
    rest = {name: array for name, array in fitted.items() if not name.startswith("lexicon")}
    return rest | {"out": out, "out_bias": out_bias, "departures": departures, "task_departures": of_task}


def _arrays(labels: Labels, fitted: Arrays, weighed: Arrays, seed: int) -> Arrays:
    """All but the encoder's."""
    lexicon, centres, counts = (fitted[name] for name in ("lexicon", "centres", "centre_counts"))
    step = np.maximum(np.abs(lexicon).max(axis=1), 1e-9) / 127.0
    clusters = KMeans(min(_CLUSTERS, len(centres)), n_init=4, random_state=seed)
    return {
        **{
            name: array.astype(np.float32 if name in _SINGLE else np.float16)
            for name, array in weighed.items()
        },
        "lexicon": np.rint(lexicon / step[:, None]).astype(np.int8),
        "lexicon_step": step.astype(np.float32),
        "centre_clusters": clusters.fit(centres, sample_weight=counts.sum(axis=1)).labels_.astype(np.uint16),
        "head_names": np.array(labels.heads),
        "head_scale": labels.head_scale.astype(np.uint16),
        "head_rows": (~np.isnan(labels.quality)).sum(axis=0).astype(np.uint32),
        "scale_names": np.array(labels.scales),
        "scale_shift": scale_shifts(labels, fitted["head_prior"]),
    }


def _settings(labels: Labels, trust: list[Trust], seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "parts": _PARTS,
        "scales": {
            name: {
                "models": len(labels.heads_on(scale)),
                f"weights of {', '.join(EXPERTS)}": {
                    "common": [round(weight, 4) for weight in trust[scale].common],
                    "particular": [round(weight, 4) for weight in trust[scale].particular],
                },
            }
            for scale, name in enumerate(labels.scales)
        },
    }
