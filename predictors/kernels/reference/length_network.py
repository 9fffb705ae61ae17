"""The network of the length model: a prompt and models to distributions over the bins of
`predictors.kernels.length_bins`.

The network sees three parts of a prompt:

- *words in order*: an LSTM over patches of `PATCH` words, over the prompt's head and tail as two sequences;
- *counts*: sizes of the prompt, and how often each of the most frequent words occurs;
- *factors*: a few functions of the counts, and of which words and pairs of words occur (TF-IDF), fitted in closed form to what
  the answers of all models have in common (`predictors.training.length_factors`).

The embedding of a model is the sum of its own, its family's and one that all models share. So an unknown model is
served as a member of its family, and an unknown family as a model. Prompt and model give a mixture of logistic
distributions of log length (log-logistic lengths: the tail falls as a power), of which `WIDE_SHARE` is wide.
`predictors.training.length` trains the network with PyTorch. Here it runs once a request, for all models of a fleet.

A prompt with few pairs of words that are known from training is drawn towards the untrained prior of all lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from predictors.kernels.length_bins import EDGES, PRIOR_SHARES
from router.core.types import PromptFeatures

#: Words in one step of the LSTM.
PATCH = 8
#: Frequent words whose counts the network sees.
FREQUENT = 64
COMPONENTS = 3
#: This share of every distribution is a log-logistic of this scale: beyond ten times the median it leaves 2 in 10,000
#: of its own, falling with the power 1 / scale.
WIDE_SHARE = 0.01
WIDE_SCALE = 0.6
LOG_SCALE_RANGE = (-4.0, 1.5)
LOG_MEDIAN_RANGE = (0.0, 12.0)
#: Standardised inputs are cut here, so that a strange prompt counts as very unusual at most.
MOST_DEVIATION = 3.0

WORDS = 1 << 16
PAIRS = 1 << 18
GRAMS = WORDS + PAIRS
LOG_EDGES = np.log(np.array(EDGES))
PRIOR = np.array(PRIOR_SHARES)


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    product: np.ndarray = x * (0.5 * np.tanh(0.5 * x) + 0.5)
    return product


def grams_of(features: PromptFeatures) -> np.ndarray:
    """Ids in [0, GRAMS) of a prompt's words, then of the pairs of neighbours, with repeats."""
    words = np.array(features.head + features.tail, np.int64)
    return np.concatenate((words, WORDS + ((words[:-1] * 40503 + words[1:] * 9973) & (PAIRS - 1))))


def familiarity(known: np.ndarray) -> float:
    """The share of a prompt's pairs of words that are known; of its single word if it has one; 0 without words. `known`
    is in the order of `grams_of`. Pairs distinguish other kinds of text better than words do."""
    pairs = known[(len(known) + 1) // 2 :] if len(known) > 1 else known
    return np.count_nonzero(pairs) / len(pairs) if len(pairs) else 0.0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words and pairs known from training. `gram_rows` (GRAMS,) and `word_rows` (WORDS,) give the row of an id in
    the tables, 0 for an unknown one. Words are numbered from the most frequent one."""

    gram_rows: np.ndarray
    word_rows: np.ndarray

    @classmethod
    def of(cls, grams: np.ndarray, words: np.ndarray) -> Vocabulary:
        """From the known ids, in the order of their rows (from 1)."""
        gram_rows, word_rows = np.zeros(GRAMS, np.int32), np.zeros(WORDS, np.int32)
        gram_rows[grams] = np.arange(1, len(grams) + 1)
        word_rows[words] = np.arange(1, len(words) + 1)
        return cls(gram_rows, word_rows)

    def known(self, features: PromptFeatures) -> tuple[np.ndarray, float]:
        """(rows of the known words and pairs that occur, each once; `familiarity`)."""
        rows = self.gram_rows[grams_of(features)]
        return np.unique(rows[rows > 0]), familiarity(rows > 0)

    def sequences(self, features: PromptFeatures) -> np.ndarray:
        """(sequences, patches, PATCH) rows of words, 0 for an unknown word and for padding: the head, and the tail if
        there is one."""
        parts = (features.head, features.tail) if features.tail else (features.head,)
        patches = max(1, -(-max(map(len, parts)) // PATCH))
        ids = np.zeros((len(parts), patches * PATCH), np.int32)
        for row, part in zip(ids, parts, strict=True):
            if part:
                row[: len(part)] = self.word_rows[np.array(part)]
        return ids.reshape(len(parts), patches, PATCH)

    @staticmethod
    def counts(features: PromptFeatures, sequences: np.ndarray) -> np.ndarray:
        """(counts + FREQUENT,) logarithms of the prompt's counts and of those of frequent words."""
        frequent = np.bincount(sequences.ravel(), minlength=FREQUENT + 1)[1 : FREQUENT + 1]
        return np.log1p(np.concatenate((features.counts, frequent)))


def last_patches(features: PromptFeatures) -> list[int]:
    """The positions in `Vocabulary.sequences` where the head and the tail (if there is one) end."""
    parts = (features.head, features.tail) if features.tail else (features.head,)
    return [max(0, -(-len(part) // PATCH) - 1) for part in parts]


@dataclass(frozen=True, slots=True)
class LengthFleet:
    """What does not depend on the prompt, for some models in order: (M, ...) each."""

    level: np.ndarray
    tilt: np.ndarray
    mix: np.ndarray
    spread: np.ndarray


class FleetLayers:
    """The layers that see only the models. The compiled network keeps them, but no second copy of the others."""

    def __init__(self, of: Mapping[str, np.ndarray]) -> None:
        self._level, self._level_bias = of["level_weight"], of["level_bias"]
        self._tilt, self._tilt_bias = of["tilt_weight"], of["tilt_bias"]
        self._mix, self._mix_bias = of["mix_model"], of["mix_bias"]

    def fleet(self, table: np.ndarray, spread: np.ndarray) -> LengthFleet:
        """From the embeddings (M, ...) of some models, and how much each widens its distribution (M,)."""
        table = table.astype(np.float32)
        if len(table) != len(spread):
            raise ValueError("embeddings and spreads of different models")
        return LengthFleet(
            (table @ self._level + self._level_bias)[:, 0],
            table @ self._tilt + self._tilt_bias,
            table @ self._mix + self._mix_bias,
            spread.astype(np.float64)[:, None],
        )


class LengthNetwork:
    """The network with its weights, by the names of `predictors.learned.length_model`. Raises ValueError, IndexError or
    TypeError for arrays that do not fit together."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.of = values = {
            key: array.astype(np.float32) if array.dtype.kind == "f" else array
            for key, array in arrays.items()
        }
        self.layers = FleetLayers(values)
        self.fleet = self.layers.fleet
        self.vocabulary = Vocabulary.of(values["grams"], values["words"])
        self.strange, self.familiar = map(float, values["familiar"])
        # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2: with halved gates, one tanh serves all four.
        hidden = len(values["lstm_state"])
        half = np.repeat(np.array([0.5, 0.5, 1.0, 0.5], np.float32), hidden)  # input, forget, cell, output
        self.step_input, self.step_bias = values["lstm_input"] * half, values["lstm_bias"] * half
        self.step_state = np.ascontiguousarray(values["lstm_state"] * half)
        self._first_factor = len(values["input_mean"]) - values["gram_table"].shape[1] + 1

    def shares(self, features: PromptFeatures, fleet: LengthFleet) -> np.ndarray:
        """(M, bins) shares of the length bins for each model. Rows sum to 1, and all shares are above 0."""
        prompt, familiar = self._prompt(features)
        shares = shares_of(*self._mixtures(prompt, fleet), fleet.spread)
        if familiar < self.familiar:
            weight = min(1.0, (self.familiar - familiar) / max(self.familiar - self.strange, 1e-6))
            shares = (1.0 - weight) * shares + weight * PRIOR
        return shares

    def mixtures(self, features: PromptFeatures, fleet: LengthFleet) -> tuple[np.ndarray, np.ndarray]:
        """The mixtures from which `shares_of` makes distributions, before they are widened or drawn to the prior."""
        return self._mixtures(self._prompt(features)[0], fleet)

    def _mixtures(self, prompt: np.ndarray, fleet: LengthFleet) -> tuple[np.ndarray, np.ndarray]:
        mixed = silu(prompt @ self.of["mix_prompt"] + fleet.mix)
        return fleet.level + fleet.tilt @ prompt, mixed @ self.of["out_weight"] + self.of["out_bias"]

    def _prompt(self, features: PromptFeatures) -> tuple[np.ndarray, float]:
        """(vector of a prompt, its `familiarity`)."""
        of = self.of
        rows, familiar = self.vocabulary.known(features)
        total = of["gram_table"][rows].sum(axis=0)
        factors = total[:-1] / sqrt(total[-1]) if len(rows) else total[:-1]
        sequences = self.vocabulary.sequences(features)
        counts = self.vocabulary.counts(features, sequences)
        factors = factors + np.tanh(counts @ of["random_weight"] + of["random_bias"]) @ of["random_table"]
        inputs = np.concatenate((counts, factors))
        inputs = (inputs - of["input_mean"]) * of["input_scale"]
        inputs = np.minimum(np.maximum(inputs, -MOST_DEVIATION), MOST_DEVIATION).astype(np.float32)
        state = self._words_in_order(sequences, last_patches(features))
        dense = silu(inputs @ of["dense_weight"] + of["dense_bias"])
        joined = np.concatenate((state, dense))
        skip = inputs[self._first_factor :] @ of["skip_weight"] + of["skip_bias"]
        return silu(joined @ of["trunk_weight"] + of["trunk_bias"]) + skip, familiar

    def _words_in_order(self, sequences: np.ndarray, last: list[int]) -> np.ndarray:
        """(2 x hidden,) the LSTM's state after the head and after the tail, 0 without one."""
        of, weights = self.of, self.step_state
        count, patches, _ = sequences.shape
        hidden = len(weights)
        embedded = of["word_table"][sequences].reshape(count * patches, -1)
        steps = silu(embedded @ of["patch_weight"] + of["patch_bias"]) @ self.step_input + self.step_bias
        steps = np.ascontiguousarray(steps.reshape(count, patches, -1).swapaxes(0, 1))
        state, cell = np.zeros((count, hidden), np.float32), np.zeros((count, hidden), np.float32)
        states = []
        for step in steps:
            gates = np.tanh(step + state @ weights)
            opened = 0.5 * gates + 0.5
            cell = (
                opened[:, hidden : 2 * hidden] * cell + opened[:, :hidden] * gates[:, 2 * hidden : 3 * hidden]
            )
            state = opened[:, 3 * hidden :] * np.tanh(cell)
            states.append(state)
        found = np.zeros(2 * hidden, np.float32)
        for row, at in enumerate(last):
            found[row * hidden : (row + 1) * hidden] = states[at][row]
        return found


def shares_of(centre: np.ndarray, out: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(M, bins) of mixtures of logistics of log length, from `LengthNetwork.mixtures`. `spread` (M, 1) widens each about
    its mean."""
    out = out.astype(np.float64)
    weights = np.exp(out[:, :COMPONENTS] - out[:, :COMPONENTS].max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    middles = centre[:, None] + out[:, COMPONENTS : 2 * COMPONENTS]
    mean = (weights * middles).sum(axis=1, keepdims=True)
    middles = np.concatenate((mean + spread * (middles - mean), mean), axis=1)
    middles = np.minimum(np.maximum(middles, LOG_MEDIAN_RANGE[0]), LOG_MEDIAN_RANGE[1])
    log_scales = np.minimum(np.maximum(out[:, 2 * COMPONENTS :], LOG_SCALE_RANGE[0]), LOG_SCALE_RANGE[1])
    scales = spread * np.concatenate((np.exp(log_scales), np.full_like(mean, WIDE_SCALE)), axis=1)
    weights = np.concatenate(((1.0 - WIDE_SHARE) * weights, np.full_like(mean, WIDE_SHARE)), axis=1)
    above = np.tanh((0.5 / scales)[:, :, None] * (LOG_EDGES - middles[:, :, None]))
    below = 0.5 * (weights[:, None, :] @ above)[:, 0] + 0.5
    below[:, 0], below[:, -1] = 0.0, 1.0
    shares = np.maximum(below[:, 1:] - below[:, :-1], 1e-12)
    found: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
    return found
