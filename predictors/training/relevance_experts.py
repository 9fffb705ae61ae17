"""The experts of relevance, each fitted on its own. Arrays have the names of the artifact (`predictors.learned.relevance`)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import scipy.sparse
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.cluster import KMeans
from sklearn.linear_model import Ridge
from torch import nn

from predictors.kernels.reference.relevance_network import HALF_EVIDENCE, Prototypes
from predictors.learned.text import COUNTS
from predictors.training.prompt_vectors import Arrays, Scale, Settings, train_network
from predictors.training.relevance_labels import Labels, priors
from predictors.training.relevance_pooling import pooled_departures

# --- the network ----------------------------------------------------------------------------------------
_HIDDEN = 256
_MEMBERS = 2
_SETTINGS = Settings(epochs=30, batch=256, rate=3e-3, decay=1e-2)
_DROPPED = 0.5


def fit_network(vectors: np.ndarray, labels: Labels, rows: np.ndarray, seed: int) -> Arrays:
    """Departures in log-odds: max(x @ hidden + hidden_bias, 0) @ out + out_bias. An ensemble of networks with one hidden
    layer that all heads share, fitted on some rows with soft labels; its members lie side by side in the hidden layer. A
    prompt weighs as the root of its number of answers, since the answers to one prompt are much alike."""
    members = [_fit_member(vectors[rows], labels.quality[rows], seed + member) for member in range(_MEMBERS)]
    hidden, hidden_bias, out, out_bias = zip(*members, strict=True)
    return {
        "hidden": np.concatenate(hidden, axis=1),
        "hidden_bias": np.concatenate(hidden_bias),
        "out": np.concatenate(out) / _MEMBERS,
        "out_bias": np.mean(out_bias, axis=0),
    }


def _fit_member(
    vectors: np.ndarray, quality: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    torch.manual_seed(seed)
    scale = Scale(vectors)
    given = torch.from_numpy(scale(vectors))
    there = torch.from_numpy((~np.isnan(quality)).astype(np.float32))
    actual = torch.from_numpy(np.nan_to_num(quality))
    weight = there / there.sum(dim=1, keepdim=True).clamp(min=1.0).sqrt()
    prior = torch.from_numpy(priors(quality))
    hidden, out = nn.Linear(given.shape[1], _HIDDEN), nn.Linear(_HIDDEN, quality.shape[1])
    with torch.no_grad():
        out.weight.mul_(0.1)
        out.bias.zero_()
    network = nn.Sequential(nn.Dropout(_DROPPED / 2), hidden, nn.ReLU(), nn.Dropout(_DROPPED), out)
    loss_of = nn.BCEWithLogitsLoss(reduction="none")

    def loss(rows: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = (loss_of(prior + found, actual[rows]) * weight[rows]).sum() / weight[rows].sum()
        return total

    train_network(network, given, torch.arange(len(given)), loss, seed, _SETTINGS)
    first, bias = scale.folded(hidden.weight.detach().numpy().T, hidden.bias.detach().numpy())
    return first, bias, out.weight.detach().numpy().T, out.bias.detach().numpy()


# --- the lexicon ----------------------------------------------------------------------------------------
_SCORES_A_SCALE = 3
_RIDGE = 4.0
#: A floor for means near 0 or 1: log-odds there change by at most 1 / this for each unit of quality.
_LEAST_SLOPE = 0.02


def fit_lexicon(weights: scipy.sparse.csr_matrix, labels: Labels, rows: np.ndarray) -> Arrays:
    """Departures in log-odds: (weights of grams @ lexicon) @ lexicon_out. By scale: the main patterns over models in which quality departs from the models' means, and ridge regressions of
    the amount of each pattern on the weights of a prompt's grams."""
    quality = labels.quality[rows]
    mean = 1.0 / (1.0 + np.exp(-priors(quality)))
    coefficients, outs = [], []
    for scale in range(len(labels.scales)):
        heads = labels.heads_on(scale)
        there = ~np.isnan(quality[:, heads])
        rated = there.any(axis=1)
        if not rated.any():
            continue
        departed = np.nan_to_num(quality[:, heads] - mean[heads])[rated]
        # A missing answer counts as no departure. The rest is scaled up, by how few answered.
        answered = there[rated].mean(axis=1)
        _, _, patterns = np.linalg.svd(departed, full_matrices=False)
        patterns = patterns[:_SCORES_A_SCALE]
        amounts = (departed @ patterns.T) / answered[:, None]
        ridge = Ridge(alpha=_RIDGE, solver="sparse_cg", fit_intercept=True)
        ridge.fit(weights[rows[rated]], amounts, sample_weight=answered / answered.mean())
        coefficients.append(np.atleast_2d(ridge.coef_).T)
        # A small step in quality as a step in log-odds.
        out = np.zeros((len(patterns), quality.shape[1]))
        out[:, heads] = patterns / np.maximum(mean[heads] * (1.0 - mean[heads]), _LEAST_SLOPE)
        outs.append(out)
    return {"lexicon": np.concatenate(coefficients, axis=1), "lexicon_out": np.concatenate(outs)}


# --- the prototypes -------------------------------------------------------------------------------------
_PROMPTS_A_PROTOTYPE = 40
_MOST_PROTOTYPES = 384
#: Quantiles of the nearness of prompts to their prototype. Half of the first means no trust, the second full trust.
_NEAR = (0.01, 0.05)


def fit_prototypes(vectors: np.ndarray, labels: Labels, rows: np.ndarray, seed: int) -> Arrays:
    """Centres of similar prompts, and (K, H) `departures` of each head's quality there from its mean, in log-odds."""
    directions = vectors[rows, : -len(COUNTS) - 1]
    count = int(np.clip(len(rows) // _PROMPTS_A_PROTOTYPE, 1, _MOST_PROTOTYPES))
    means = KMeans(count, n_init=1, random_state=seed).fit(directions)
    centres = means.cluster_centers_
    centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-9)
    likeness = directions @ centres.T
    nearest = likeness.argmax(axis=1)
    _, departures = pooled_departures(labels, rows, nearest, count)
    counts = np.zeros((count, len(labels.scales)))
    for scale in range(len(labels.scales)):
        rated = (~np.isnan(labels.quality[np.ix_(rows, labels.heads_on(scale))])).any(axis=1)
        np.add.at(counts[:, scale], nearest, rated)
    low, high = np.quantile(likeness.max(axis=1) * vectors[rows, -1], _NEAR)
    return {
        "centres": centres.astype(np.float32),
        "centre_counts": counts.astype(np.float32),
        "near": np.array([low / 2.0, max(high, low / 2.0 + 1e-3)]),
        "departures": departures,
    }


# --- the tasks ------------------------------------------------------------------------------------------
_PROMPTS_OF_TASK = 20
_TASK_RIDGE = 1.0
_TASK_STEPS = 60


def fit_tasks(vectors: np.ndarray, labels: Labels, rows: np.ndarray) -> Arrays:
    """Departures from `head_prior`, the log-odds of the heads' means: shares of the tasks (`task_shares`) @
    task_departures. A logistic regression from prompts to tasks, and the quality of the models at each task. Rare tasks,
    and prompts without one, form one task for each source."""
    prompts = [labels.prompts[row] for row in rows]
    often = Counter((prompt.source, prompt.task) for prompt in prompts)
    names = [
        f"{prompt.source}/{prompt.task}"
        if prompt.task and often[prompt.source, prompt.task] >= _PROMPTS_OF_TASK
        else prompt.source
        for prompt in prompts
    ]
    found, task = np.unique(names, return_inverse=True)
    scale = Scale(vectors[rows])
    given = np.column_stack([scale(vectors[rows]), np.ones(len(rows))])
    actual = np.eye(len(found))[task]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(given.shape[1], len(found))
        log_shares = log_softmax(given @ weights, axis=1)
        slope = given.T @ (np.exp(log_shares) - actual) + _TASK_RIDGE * weights
        value = _TASK_RIDGE / 2 * float(flat @ flat) - float((actual * log_shares).sum())
        return value, slope.ravel()

    start = np.zeros(given.shape[1] * len(found))
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _TASK_STEPS}).x
    *weights, bias = best.reshape(given.shape[1], len(found))
    prior, departures = pooled_departures(labels, rows, task, len(found))
    task_weights, task_bias = scale.folded(np.stack(weights), bias)
    return {
        "task_weights": task_weights,
        "task_bias": task_bias,
        "task_departures": departures,
        "head_prior": prior,
    }


def task_shares(fitted: Arrays, vectors: np.ndarray) -> np.ndarray:
    """(P, T) probabilities of the tasks, of vectors (P, X)."""
    return np.asarray(softmax(vectors @ fitted["task_weights"] + fitted["task_bias"], axis=1))


# --- all of them ----------------------------------------------------------------------------------------
def fit_experts(
    labels: Labels, vectors: np.ndarray, weights: scipy.sparse.csr_matrix, rows: np.ndarray, seed: int
) -> Arrays:
    """The experts as fitted on some rows of the prompts' vectors and weights of grams."""
    return {
        **fit_network(vectors, labels, rows, seed),
        **fit_prototypes(vectors, labels, rows, seed),
        **fit_lexicon(weights, labels, rows),
        **fit_tasks(vectors, labels, rows),
    }


def departures_without_tasks(
    fitted: Arrays, head_scale: np.ndarray, vectors: np.ndarray, weights: scipy.sparse.csr_matrix
) -> tuple[np.ndarray, np.ndarray]:
    """(departures of network, prototypes and lexicon (3, P, H), how far departures are faded in (P, H))."""
    hidden = np.maximum(vectors @ fitted["hidden"] + fitted["hidden_bias"], 0.0)
    network = hidden @ fitted["out"] + fitted["out_bias"]
    lexicon = (weights @ fitted["lexicon"]) @ fitted["lexicon_out"]
    low, high = fitted["near"].tolist()
    prototypes = Prototypes(fitted["centres"], fitted["centre_counts"], (low, high))
    counted = fitted["departures"] * prototypes.counts[:, head_scale]
    nearby, faded = [], []
    for vector in vectors:
        nearness, near_by, trust, _ = prototypes.nearness(vector)
        near = np.maximum(near_by, 1e-9)[head_scale]
        nearby.append(nearness @ counted / near)
        faded.append(trust * near / (near + HALF_EVIDENCE))
    return np.stack([network, np.stack(nearby), lexicon]), np.stack(faded)
