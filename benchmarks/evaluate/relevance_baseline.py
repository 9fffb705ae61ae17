"""What relevance is compared with: TF-IDF and one logistic regression a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.evaluate.picks import on_scale, text_of
from predictors.training.dataset import Prompt, fraction_of
from predictors.training.relevance_labels import Labels, priors

BASELINE = "TF-IDF + logistic regression"
_PENALTIES = (0.3, 1.0, 3.0, 10.0)
_INNER = 0.2


def fitted_baseline(
    train: Labels, scale: str, models: Sequence[str], prompts: Sequence[Prompt], seed: int
) -> np.ndarray:
    """(prompts, M) expected qualities; words and pairs of the whole text, logarithmic counts, soft labels,
    and for each scale the C with the least inner log loss."""
    quality = on_scale(train, scale, models)
    rated = np.flatnonzero((~np.isnan(quality)).any(axis=1))
    if not len(rated):
        return np.full((len(prompts), len(models)), 0.5)
    texts = [text_of(train.prompts[row]) for row in rated]
    quality = quality[rated]
    inner = np.array([fraction_of(train.prompts[row].group, seed) < _INNER for row in rated])
    penalty = 1.0
    if inner.any() and not inner.all():
        fit = [text for text, out in zip(texts, inner, strict=True) if not out]
        out = [text for text, out in zip(texts, inner, strict=True) if out]
        losses = [
            _log_loss(quality[inner], found) for found in _fitted(fit, quality[~inner], out, _PENALTIES)
        ]
        penalty = _PENALTIES[int(np.argmin(losses))]
    return _fitted(texts, quality, [text_of(prompt) for prompt in prompts], (penalty,))[0]


def _fitted(
    texts: Sequence[str], quality: np.ndarray, test_texts: Sequence[str], penalties: Sequence[float]
) -> list[np.ndarray]:
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        min_df=2 if len(texts) > 100 else 1,
        sublinear_tf=True,
        token_pattern=r"(?u)\b\w+\b",  # noqa: S106 - no password: words of one character count too
    )
    found = [np.tile(_means(quality), (len(test_texts), 1)) for _ in penalties]
    try:
        given = vectorizer.fit_transform(texts)
    except ValueError:  # not one word in all texts
        return found
    wanted = vectorizer.transform(test_texts)
    for model in range(quality.shape[1]):
        there = ~np.isnan(quality[:, model])
        actual = quality[there, model]
        if not len(actual) or actual.min() == actual.max():
            continue
        rows = given[there]
        # A soft label is a good and a bad answer, each weighing its share.
        both = scipy.sparse.vstack([rows, rows])
        labels = np.repeat([1, 0], len(actual))
        shares = np.concatenate([actual, 1.0 - actual])
        counted = shares > 0
        for values, penalty in zip(found, penalties, strict=True):
            regression = LogisticRegression(C=penalty, max_iter=300)
            regression.fit(both[counted], labels[counted], shares[counted])
            values[:, model] = regression.predict_proba(wanted)[:, 1]
    return found


def _means(quality: np.ndarray) -> np.ndarray:
    return np.asarray(1.0 / (1.0 + np.exp(-priors(quality))), dtype=float)


def _log_loss(quality: np.ndarray, predicted: np.ndarray) -> float:
    there = ~np.isnan(quality)
    actual, chance = quality[there], np.clip(predicted[there], 1e-4, 1.0 - 1e-4)
    return float(-np.mean(actual * np.log(chance) + (1.0 - actual) * np.log(1.0 - chance)))
