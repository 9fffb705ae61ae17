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

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.cluster import KMeans

from predictors.kernels.reference.prompt_encoder import Encoder
from predictors.kernels.reference.relevance_network import HALF_EVIDENCE, Prototypes
from predictors.learned.artifact import Artifact
from predictors.learned.relevance import RELEVANCE_FEATURES, encoder_of
from predictors.training.dataset import Dataset, Progress, fraction_of
from predictors.training.prompt_vectors import fit_encoder
from predictors.training.relevance_experts import (
    Lexicon,
    Network,
    Tasks,
    fit_lexicon,
    fit_network,
    fit_prototypes,
    fit_tasks,
)
from predictors.training.relevance_labels import Labels, labels_of, scale_shifts
from predictors.training.relevance_stack import Trust, fit_trust

_DIRECTIONS, _MOST_GRAMS = 64, 20_000
_PARTS = 3
_CLUSTERS = 32
EXPERTS = ("network", "prototypes", "lexicon", "tasks")


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
    everything = np.arange(len(labels.prompts))
    fitted = _fit(labels, vectors, weights, everything, seed)
    return _artifact(labels, grams, fitted, _means_of_tasks(labels, vectors, weights, fitted), trust, seed)


@dataclass(frozen=True)
class _Fitted:
    """The experts as fitted on `rows`. `departures` (K, H) are those of the prototypes."""

    rows: np.ndarray
    network: Network
    prototypes: Prototypes
    departures: np.ndarray
    lexicon: Lexicon
    tasks: Tasks

    def without_tasks(
        self, vectors: np.ndarray, weights: scipy.sparse.csr_matrix, labels: Labels
    ) -> tuple[np.ndarray, np.ndarray]:
        """(departures (experts but the tasks, P, H), how far departures are faded in (P, H))."""
        near, faded = _near(self.prototypes, self.departures, vectors, labels)
        return np.stack([self.network.departures(vectors), near, self.lexicon.departures(weights)]), faded


def _fit(
    labels: Labels, vectors: np.ndarray, weights: scipy.sparse.csr_matrix, rows: np.ndarray, seed: int
) -> _Fitted:
    return _Fitted(
        rows,
        fit_network(vectors, labels, rows, seed),
        *fit_prototypes(vectors, labels, rows, seed),
        fit_lexicon(weights, labels, rows),
        fit_tasks(vectors, labels, rows),
    )


def _means_of_tasks(
    labels: Labels, vectors: np.ndarray, weights: scipy.sparse.csr_matrix, fitted: _Fitted
) -> np.ndarray:
    """(experts but the tasks, T, H): the mean of an expert's departures at each task."""
    rows = fitted.rows
    of_task = fitted.tasks.of(vectors[rows])
    departures, _ = fitted.without_tasks(vectors[rows], weights[rows], labels)
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
        judged = np.flatnonzero(part == out)
        fitted = _fit(labels, vectors, weights, np.flatnonzero(part != out), seed)
        of_task = fitted.tasks.of(vectors[judged])
        beyond, faded = fitted.without_tasks(vectors[judged], weights[judged], labels)
        beyond -= of_task @ _means_of_tasks(labels, vectors, weights, fitted)
        prior[judged] = fitted.tasks.prior
        departures[:, judged] = faded * np.concatenate([beyond, (of_task @ fitted.tasks.departures)[None]])
    return prior, departures


def _near(
    prototypes: Prototypes, there: np.ndarray, vectors: np.ndarray, labels: Labels
) -> tuple[np.ndarray, np.ndarray]:
    """(departures (K, H) of the nearby prototypes, how far departures are faded in); both (P, H)."""
    counted = there * prototypes.counts[:, labels.head_scale]
    departures, faded = [], []
    for vector in vectors:
        weights, near_by, trust, _ = prototypes.nearness(vector)
        near = np.maximum(near_by, 1e-9)[labels.head_scale]
        departures.append(weights @ counted / near)
        faded.append(trust * near / (near + HALF_EVIDENCE))
    return np.stack(departures), np.stack(faded)


def _artifact(
    labels: Labels,
    grams: dict[str, np.ndarray],
    fitted: _Fitted,
    means: np.ndarray,
    trust: list[Trust],
    seed: int,
) -> Artifact:
    network, lexicon, tasks, prototypes = fitted.network, fitted.lexicon, fitted.tasks, fitted.prototypes
    out_bias, departures, of_task = network.out_bias.copy(), fitted.departures.copy(), tasks.departures.copy()
    out = np.concatenate([network.out, lexicon.out])
    hidden = len(network.out)
    for scale, believed in enumerate(trust):
        heads = labels.heads_on(scale)
        out[:hidden, heads] = believed.weighed(out[:hidden, heads], EXPERTS.index("network"))
        out[hidden:, heads] = believed.weighed(out[hidden:, heads], EXPERTS.index("lexicon"))
        out_bias[heads] = believed.weighed(out_bias[heads], EXPERTS.index("network")) + believed.constant
        departures[:, heads] = believed.weighed(departures[:, heads], EXPERTS.index("prototypes"))
        of_task[:, heads] = believed.weighed(of_task[:, heads], EXPERTS.index("tasks"))
        for expert, mean in enumerate(means):
            of_task[:, heads] -= believed.weighed(mean[:, heads], expert)
    step = np.maximum(np.abs(lexicon.grams).max(axis=1), 1e-9) / 127.0
    count = min(_CLUSTERS, len(prototypes.centres))
    clusters = KMeans(count, n_init=4, random_state=seed).fit(
        prototypes.centres, sample_weight=prototypes.counts.sum(axis=1)
    )
    half, single = np.float16, np.float32
    arrays = {
        **grams,
        "lexicon": np.rint(lexicon.grams / step[:, None]).astype(np.int8),
        "lexicon_step": step.astype(single),
        "hidden": network.hidden.astype(half),
        "hidden_bias": network.hidden_bias.astype(single),
        "out": out.astype(half),
        "out_bias": out_bias.astype(single),
        "task_weights": tasks.weights.astype(half),
        "task_bias": tasks.bias.astype(single),
        "task_departures": of_task.astype(half),
        "centres": prototypes.centres.astype(half),
        "centre_counts": prototypes.counts.astype(half),
        "centre_clusters": clusters.labels_.astype(np.uint16),
        "departures": departures.astype(half),
        "near": np.array(prototypes.near, dtype=single),
        "head_names": np.array(labels.heads),
        "head_scale": labels.head_scale.astype(np.uint16),
        "head_rows": (~np.isnan(labels.quality)).sum(axis=0).astype(np.uint32),
        "head_prior": tasks.prior.astype(single),
        "scale_names": np.array(labels.scales),
        "scale_shift": scale_shifts(labels, tasks.prior),
    }
    return Artifact("relevance", RELEVANCE_FEATURES, arrays, {"settings": _settings(labels, trust, seed)})


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
