"""The network of `predictors.learned.length_model` in PyTorch, and its likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from predictors.kernels.reference.length_network import (
    COMPONENTS,
    FREQUENT,
    LOG_SCALE_RANGE,
    PATCH,
    WIDE_SCALE,
    WIDE_SHARE,
)
from predictors.learned.text import COUNTS


@dataclass(frozen=True, slots=True)
class LengthSettings:
    """Sizes of the network and how it is trained. `calibration_parts` of the prompts are set aside in turn to find how wide the
    distributions should be (1: that is not done). The rest was chosen on inner splits by prompt group of ZeroEval, AlpacaEval and
    Arena prompts. Words in order learn slowly and with much dropout, since they would memorise prompts."""

    epochs: int = 20
    least_steps: int = 400
    batch_prompts: int = 32
    rate: float = 3e-3
    lstm_rate: float = 6e-4
    decay: float = 0.01
    lstm_decay: float = 0.3
    averaging: float = 0.98
    factors: int = 8
    random_features: int = 512
    least_word_prompts: int = 20
    most_words: int = 4000
    word_size: int = 16
    patch_size: int = 16
    hidden: int = 24
    dense: int = 32
    prompt_size: int = 24
    model_size: int = 16
    mix: int = 64
    dropout: float = 0.4
    lstm_dropout: float = 0.5
    word_dropout: float = 0.3
    model_dropout: float = 0.15
    family_dropout: float = 0.05
    calibration_parts: int = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts: `words` (prompts, 2, patches, PATCH) rows of words, `last` (prompts, 2) where head and tail end, -1
    without one; `inputs` (prompts, counts + factors) standardised."""

    words: Tensor
    last: Tensor
    inputs: Tensor

    def part(self, rows: np.ndarray) -> Batch:
        """These prompts, with as many patches as the longest of them has."""
        last = self.last[rows]
        return Batch(self.words[rows, :, : int(last.max()) + 1], last, self.inputs[rows])


@dataclass(frozen=True, slots=True)
class Mixture:
    """(answers, components): log weights, middles and log scales of logistics of log length."""

    log_weights: Tensor
    middles: Tensor
    log_scales: Tensor


class LengthNet(nn.Module):
    """Prompts and models to mixtures. Model 0 and family 0 are unknown: embeddings that stay 0."""

    def __init__(
        self, settings: LengthSettings, words: int, models: int, families: int, level: float
    ) -> None:
        super().__init__()
        size = settings
        self.settings = settings
        self.words = nn.Embedding(words + 1, size.word_size, padding_idx=0)
        self.patch = nn.Linear(size.word_size * PATCH, size.patch_size)
        self.lstm = nn.LSTM(size.patch_size, size.hidden, batch_first=True)
        self.dense = nn.Linear(len(COUNTS) + FREQUENT + size.factors, size.dense)
        self.trunk = nn.Linear(2 * size.hidden + size.dense, size.prompt_size)
        self.skip = nn.Linear(size.factors, size.prompt_size)
        self.models = nn.Embedding(models + 1, size.model_size, padding_idx=0)
        self.families = nn.Embedding(families + 1, size.model_size, padding_idx=0)
        self.any_model = nn.Parameter(torch.zeros(size.model_size))
        self.level = nn.Linear(size.model_size, 1)
        self.tilt = nn.Linear(size.model_size, size.prompt_size)
        self.mix_prompt = nn.Linear(size.prompt_size, size.mix, bias=False)
        self.mix_model = nn.Linear(size.model_size, size.mix)
        self.out = nn.Linear(size.mix, 3 * COMPONENTS)
        with torch.no_grad():
            for table in (self.words, self.models, self.families):
                table.weight.normal_(std=0.1)
                table.weight[0] = 0.0
            self.level.bias.fill_(level)
            self.out.weight.zero_()
            middles = torch.linspace(-0.4, 0.4, COMPONENTS)
            self.out.bias.copy_(
                torch.cat((torch.zeros(COMPONENTS), middles, torch.full((COMPONENTS,), -1.2)))
            )

    def prompts(self, batch: Batch) -> Tensor:
        """(prompts, prompt_size)."""
        size = self.settings
        words = batch.words
        if self.training:
            words = words * (torch.rand(words.shape) >= size.word_dropout)
        count, two, patches, _ = words.shape
        embedded = self.words(words).reshape(count * two, patches, -1)
        steps = functional.silu(self.patch(self._drop(embedded, size.dropout)))
        states, _ = self.lstm(steps)
        last = batch.last.reshape(-1)
        state = states[torch.arange(len(last)), last.clamp(min=0)] * (last >= 0)[:, None]
        dense = functional.silu(self.dense(batch.inputs))
        joined = torch.cat(
            (self._drop(state.reshape(count, -1), size.lstm_dropout), self._drop(dense, size.dropout)), 1
        )
        skip = self.skip(batch.inputs[:, len(COUNTS) + FREQUENT :])
        found: Tensor = functional.silu(self.trunk(joined)) + skip
        return found

    def embedding(self, model: Tensor, family: Tensor) -> Tensor:
        """(rows, model_size). In training, models and families are dropped now and then, so that the embedding of an
        unknown model is trained too."""
        own, kin = self.models(model), self.families(family)
        if self.training:
            own = own * (torch.rand(len(model)) >= self.settings.model_dropout)[:, None]
            kin = kin * (torch.rand(len(model)) >= self.settings.family_dropout)[:, None]
        found: Tensor = own + kin + self.any_model
        return found

    def forward(self, prompts: Tensor, embedding: Tensor) -> Mixture:
        """One mixture for each row of prompt vectors and model embeddings."""
        centre = self.level(embedding) + (self.tilt(embedding) * prompts).sum(1, keepdim=True)
        out = self.out(functional.silu(self.mix_prompt(prompts) + self.mix_model(embedding)))
        weights, middles, scales = out.split(COMPONENTS, dim=1)
        log_weights = functional.log_softmax(weights, 1) + log(1.0 - WIDE_SHARE)
        middles = centre + middles
        mean = (functional.softmax(weights, 1) * middles).sum(1, keepdim=True)
        return Mixture(
            torch.cat((log_weights, torch.full_like(mean, log(WIDE_SHARE))), 1),
            torch.cat((middles, mean), 1),
            torch.cat((scales.clamp(*LOG_SCALE_RANGE), torch.full_like(mean, log(WIDE_SCALE))), 1),
        )

    def _drop(self, values: Tensor, share: float) -> Tensor:
        return functional.dropout(values, share, self.training)


def negative_log_likelihood(mixture: Mixture, low: Tensor, high: Tensor, capped: Tensor) -> Tensor:
    """(answers,) -log P(length in its bin), and -log P(length > cap) for a capped answer. `low` and `high` are the
    logarithms of the bin's edges; for a capped answer `low` is that of its cap."""
    per_scale = torch.exp(-mixture.log_scales)
    left = (low[:, None] - mixture.middles) * per_scale
    right = (high[:, None] - mixture.middles) * per_scale
    above = functional.logsigmoid(-left)
    # sigmoid(r) - sigmoid(l) = sigmoid(r) sigmoid(-l) (1 - exp(l - r))
    inside = functional.logsigmoid(right) + above + torch.log1p(-torch.exp((left - right).clamp(max=-1e-6)))
    logs = torch.where(capped[:, None], above, inside)
    return -torch.logsumexp(mixture.log_weights + logs, 1)
