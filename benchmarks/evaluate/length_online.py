"""What the gateway would have predicted while it served the answers: the trained model's distribution, corrected by the
answers so far, beside the running histogram of the same model's answers (`predictors.online.model_lengths`).

On kinds of prompts that the trained model does not know, the first should fall back to the second.
"""

from __future__ import annotations

import numpy as np

from benchmarks.evaluate.length_baselines import Answers
from predictors.online.model_lengths import ModelLengths

HISTOGRAM = "running histogram"
#: Answers of a model that are learned from before the first one counts.
WARM_UP = 50


def served_medians(answers: Answers, shares: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """((answers,) medians of the corrected distributions, of the histograms), NaN for the first `WARM_UP` answers of each
    model. `shares` (answers, bins) are the trained model's. Answers come in an order drawn at random."""
    served, histogram = (np.full(len(answers.tokens), np.nan) for _ in range(2))
    order = np.random.default_rng(seed).permutation(len(answers.tokens))
    of_model: dict[str, ModelLengths] = {}
    for row in order.tolist():
        model = str(answers.model[row])
        lengths = of_model.setdefault(model, ModelLengths(None))
        if lengths.output.observed >= WARM_UP:
            served[row] = lengths.learned.table(shares[row], lengths.output).p50
            histogram[row] = lengths.output.p50
        tokens = round(answers.tokens[row])
        lengths.observe_output(tokens, tokens if answers.capped[row] else None, 1, shares[row])
    return served, histogram
