"""What the relevance model and the text-only estimators share: the encoder of prompts, and networks on its vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from sklearn.utils.extmath import randomized_svd
from torch import nn

from predictors.kernels.reference.prompt_encoder import grams
from predictors.training.dataset import DatasetError, Prompt

#: Arrays by their names in the artifact.
Arrays = dict[str, np.ndarray]

_LEAST_PROMPTS_OF_GRAM = 3


def fit_encoder(
    prompts: tuple[Prompt, ...], seed: int, *, most_grams: int, most_directions: int
) -> tuple[Arrays, scipy.sparse.csr_matrix]:
    """(arrays of an encoder without a lexicon, weights of the known grams in each prompt, rows of length 1). TF-IDF over
    the words and pairs that several prompts have, cut to its main directions (latent semantic analysis, Deerwester et al.
    1990) and to whole numbers of 8 bits. Raises DatasetError for prompts without words in common."""
    found = [np.unique(grams(prompt.features), return_counts=True) for prompt in prompts]
    ids, seen = np.unique(np.concatenate([each for each, _ in found]), return_counts=True)
    enough = min(_LEAST_PROMPTS_OF_GRAM, max(len(prompts) // 100, 2))
    kept = np.sort(np.argsort(-seen, kind="stable")[:most_grams])
    kept = kept[seen[kept] >= enough]
    if len(kept) < 2:
        raise DatasetError("the prompts have no words in common: nothing distinguishes them")
    ids, seen = ids[kept], seen[kept]
    idf = (np.log((1.0 + len(prompts)) / (1.0 + seen)) + 1.0).astype(np.float32)
    matrix = _weights(found, ids, idf)
    size = min(most_directions, min(matrix.shape) - 1)
    _, _, directions = randomized_svd(matrix, size, random_state=seed)
    step = np.maximum(np.abs(directions).max(axis=0), 1e-9) / 127.0
    arrays = {
        "gram_ids": ids.astype(np.uint32),
        "gram_idf": idf,
        "gram_table": np.rint(directions.T / step[:, None]).astype(np.int8),
        "gram_step": step.astype(np.float16),
        "unknown_idf": np.array(np.log(1.0 + len(prompts)) + 1.0, dtype=np.float32),
    }
    return arrays, matrix


def _weights(
    found: list[tuple[np.ndarray, np.ndarray]], ids: np.ndarray, idf: np.ndarray
) -> scipy.sparse.csr_matrix:
    rows, values, ends = [], [], [0]
    for these, times in found:
        places = np.minimum(np.searchsorted(ids, these), len(ids) - 1)
        known = ids[places] == these
        weights = (1.0 + np.log(times[known])) * idf[places[known]]
        length = np.sqrt(weights @ weights)
        rows.append(places[known])
        values.append(weights / max(length, 1e-9))
        ends.append(ends[-1] + len(weights))
    shape = (len(found), len(ids))
    return scipy.sparse.csr_matrix((np.concatenate(values), np.concatenate(rows), ends), shape=shape)


class Scale:
    """The scale of standardised inputs. It is folded into the weights afterwards, so that serving does not need it."""

    def __init__(self, vectors: np.ndarray) -> None:
        # A floor: with few or uniform prompts some directions have no spread, and a half float ends at 65,504.
        self.mean, self.spread = vectors.mean(axis=0), np.maximum(vectors.std(axis=0), 1e-3)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        return np.asarray((vectors - self.mean) / self.spread)

    def folded(self, weights: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(weights, bias) for raw vectors, from weights (X, M) for standardised ones."""
        plain = weights / self.spread[:, None]
        return plain, bias - self.mean @ plain


class Settings(NamedTuple):
    """`epochs` over all rows, and more until there are `least_steps`, in batches of `batch` rows, by AdamW with the highest
    learning `rate` of a one-cycle schedule and the weight `decay`."""

    epochs: int
    batch: int
    rate: float
    decay: float
    least_steps: int = 0


def train_network(
    network: nn.Module,
    inputs: torch.Tensor,
    rows: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    seed: int,
    settings: Settings,
) -> None:
    """Fit in place to the `rows` of the inputs. `loss` takes the rows of a batch and what the network gives for them."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.decay)
    batches = -(-len(rows) // settings.batch)
    epochs = max(settings.epochs, settings.least_steps // max(batches, 1))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.rate, total_steps=epochs * batches, pct_start=0.1
    )
    order = np.random.default_rng(seed)
    network.train()
    for _ in range(epochs):
        for chosen in torch.split(rows[torch.from_numpy(order.permutation(len(rows)))], settings.batch):
            value = loss(chosen, network(inputs[chosen]))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
