"""Training of the text-only estimators: one encoder without labels, then each estimator on its vectors."""

from __future__ import annotations

import numpy as np
import torch

from predictors.learned.artifact import Artifact
from predictors.learned.relevance import encoder_of
from predictors.learned.text_only import LOG_TOKENS_STEP, QUALITY_STEP, TEXT_ONLY_FEATURES, coded
from predictors.training.dataset import Dataset, DatasetError, Progress, fraction_of
from predictors.training.prompt_vectors import Arrays, fit_encoder
from predictors.training.text_only_fits import (
    fit_clusters,
    fit_factors,
    fit_logistic,
    fit_ridge,
    fit_two_heads,
)
from predictors.training.text_only_labels import (
    Additive,
    Tables,
    filled,
    length_effects,
    quality_effects,
    tables_of,
)

#: Chosen on an inner split by group of the sets that the shipped artifact is trained on.
KNN = (40.0, 8.0, 6.0)  # neighbours, sharpness, leaning
CLUSTERS = 64
PENALTY = 0.01
_MOST_INDEXED = 4_000
_DIRECTIONS, _MOST_GRAMS = 48, 8_000


def train(data: Dataset, *, seed: int = 1, progress: Progress = lambda _: None) -> Artifact:
    """The same data and seed give the same artifact. Raises DatasetError for data without quality, with too few rated
    prompts or groups of them, or with one quality throughout."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tables = tables_of(data)
    if np.nanmax(tables.quality) - np.nanmin(tables.quality) < 1e-6:
        raise DatasetError("every answer has the same quality: there is nothing to learn from")
    progress(f"encoder of {len(tables.prompts)} prompts")
    arrays, _ = fit_encoder(tables.prompts, seed, most_grams=_MOST_GRAMS, most_directions=_DIRECTIONS)
    encoder = encoder_of(arrays)
    vectors = np.stack([encoder.vector(prompt.features) for prompt in tables.prompts]).astype(np.float64)
    directions = vectors[:, : arrays["gram_table"].shape[1]]
    rated, long = quality_effects(tables.quality), length_effects(tables.log_tokens)
    quality, weight = filled(tables.quality, rated)
    guess = np.nan_to_num(long.effects) + long.levels[:, None]
    arrays |= _ground(tables, rated, long)
    progress("index and clusters")
    arrays |= _index(tables, directions, rated, long, seed)
    arrays |= fit_clusters(
        directions,
        (tables.quality, np.exp(tables.log_tokens)),
        (rated.chances, np.exp(guess + long.spread)),
        CLUSTERS,
        seed,
    )
    progress("regressions")
    weights, bias = fit_logistic(vectors, quality, weight, PENALTY)
    arrays |= {"logistic": weights, "logistic_bias": bias}
    arrays |= fit_ridge(vectors, tables.log_tokens, guess)
    progress("two heads and factors")
    arrays |= fit_two_heads(vectors, quality, weight, tables.log_tokens, seed)
    arrays |= fit_factors(vectors, quality, weight, seed)
    settings = {
        "seed": seed,
        "neighbours, sharpness, leaning": list(KNN),
        "clusters": CLUSTERS,
        "C of logistic regression": PENALTY,
    }
    return Artifact("text", TEXT_ONLY_FEATURES, _packed(arrays), {"settings": settings})


def _ground(tables: Tables, rated: Additive, long: Additive) -> Arrays:
    """What is known of the models without a prompt."""
    measured = ~np.isnan(tables.log_tokens)
    effects = np.nan_to_num(long.effects)
    seen = measured.any(axis=1)
    levels = long.levels[seen] if seen.any() else np.zeros(1)
    return {
        "head_names": np.array(tables.heads),
        "head_rows": (~np.isnan(tables.quality)).sum(axis=0).astype(np.uint32),
        "head_lengths": measured.sum(axis=0).astype(np.uint32),
        "effect_quality": rated.effects,
        "effect_log_tokens": effects,
        "mean_quality": rated.chances.mean(axis=0),
        "mean_tokens": np.exp(effects + long.spread) * np.exp(levels).mean(),
    }


def _index(tables: Tables, directions: np.ndarray, rated: Additive, long: Additive, seed: int) -> Arrays:
    """The prompts of the retrieval index: those with most models' answers; of equal ones a deterministic draw."""
    many = (~np.isnan(tables.quality)).sum(axis=1)
    draw = np.array([fraction_of(prompt.id, seed) for prompt in tables.prompts])
    kept = np.sort(np.lexsort((draw, -many))[:_MOST_INDEXED])
    vectors = directions[kept]
    step = np.maximum(np.abs(vectors).max(axis=1, keepdims=True), 1e-9) / 127.0
    return {
        "index": np.rint(vectors / step).astype(np.int8),
        "index_quality": coded(tables.quality[kept], QUALITY_STEP),
        "index_log_tokens": coded(tables.log_tokens[kept], LOG_TOKENS_STEP),
        "index_levels": rated.levels[kept],
        "index_log_levels": long.levels[kept],
        "knn": np.array(KNN),
    }


#: Kept in full precision: sums of many terms, and scales of tables.
_SINGLE = ("gram_idf", "unknown_idf", "knn", "logistic_bias", "ridge_bias", "hidden_bias", "mf_bias")


def _packed(arrays: Arrays) -> Arrays:
    return {
        name: array.astype(np.float32 if name in _SINGLE else np.float16)
        if array.dtype.kind == "f"
        else array
        for name, array in arrays.items()
    }
