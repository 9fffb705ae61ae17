"""The latency model's network for training, and its training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from predictors.kernels.levels import TAUS
from predictors.kernels.reference.latency_networks import CLIP
from predictors.learned.latency.features import EVENT_FEATURES, TARGET_FEATURES
from predictors.learned.latency.model import HIDDEN, WIDTH
from predictors.training.replay import Episode

#: Log residuals beyond this are cut: an error of a factor of 50 is as wrong as any larger one.
_MOST_RESIDUAL = 4.0


class Network(nn.Module):
    """The same function as `predictors.learned.latency.model`, for training."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(len(EVENT_FEATURES), HIDDEN, batch_first=True)
        self.join_encoding = nn.Linear(HIDDEN, WIDTH)
        self.join_target = nn.Linear(len(TARGET_FEATURES), WIDTH, bias=False)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 2 * len(TAUS))
        self.skip = nn.Linear(len(TARGET_FEATURES), 2 * len(TAUS), bias=False)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():  # it starts as the corrected estimate
            self.last.weight.mul_(0.1)
            self.last.bias.zero_()
            self.skip.weight.zero_()

    def states(self, stream: Stream) -> torch.Tensor:
        """(E + 1, HIDDEN): the state before the first event of a run and after each event."""
        start = torch.zeros(1, HIDDEN)
        if not len(stream.events):
            return start
        return torch.cat([start, self.lstm(stream.events[None])[0][0]])

    def forward(self, state: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """(N, 2, 5) quantiles of the log residual for states (N, HIDDEN) and normalised target rows."""
        first = self.dropout(torch.relu(self.join_encoding(state) + self.join_target(target)))
        middle = self.dropout(torch.relu(self.middle(first)))
        out = (self.last(middle) + self.skip(target)).view(-1, 2, len(TAUS))
        steps = nn.functional.softplus(out[:, :, 1:])
        median = out[:, :, :1]
        return torch.cat([median - steps[:, :, :1], median, median + steps[:, :, 1:].cumsum(2)], 2)


def pinball_loss(quantiles: torch.Tensor, rows: Rows) -> torch.Tensor:
    """The weighted mean over requests, of what is known of each."""
    taus = quantiles.new_tensor(TAUS)
    error = torch.nan_to_num(rows.residual)[:, :, None] - quantiles
    loss = (torch.maximum(taus * error, (taus - 1.0) * error).mean(2) * ~torch.isnan(rows.residual)).sum(1)
    short = ((rows.longer_than[:, None] - quantiles[:, 0]).clamp(min=0.0) * taus).mean(1)
    return ((loss + short) * rows.weight).sum() / rows.weight.sum()


# --- rows ---------------------------------------------------------------------------------------------
class Rows(NamedTuple):
    """Requests: normalised `target` rows, log `residual` of TTFT and TPOT (N, 2) with NaN for unknown, the lower bound
    of a censored TTFT residual (`longer_than`, else -inf), and the weight of each."""

    target: torch.Tensor
    residual: torch.Tensor
    longer_than: torch.Tensor
    weight: torch.Tensor

    def take(self, which: torch.Tensor) -> Rows:
        return Rows(*(each[which] for each in self))

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        return Rows(*map(torch.cat, zip(*parts, strict=True)))


class Stream:
    """One run: its normalised `events`, its requests, and the number of events before each request (`seen`)."""

    def __init__(self, episode: Episode, scales: dict[str, np.ndarray], weight: float = 1.0) -> None:
        self.events = tensor(_normal(episode.events, scales["event_mean"], scales["event_scale"]))
        self.seen = torch.from_numpy(episode.seen)
        self.rows = Rows(
            tensor(_normal(episode.targets, scales["target_mean"], scales["target_scale"])),
            tensor(np.clip(episode.residual, -_MOST_RESIDUAL, _MOST_RESIDUAL)),
            tensor(np.minimum(episode.longer_than - episode.corrected[:, 0], _MOST_RESIDUAL)),
            torch.full((len(episode.targets),), weight),
        )


def tensor(values: np.ndarray) -> torch.Tensor:
    """The same values in single precision."""
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def _normal(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip((rows - mean) / scale, -CLIP, CLIP))


def predict(network: Network, scales: dict[str, np.ndarray], episode: Episode) -> np.ndarray:
    """(N, 2, 5) quantiles of the log residual for a complete episode, as serving gives them one by one."""
    stream = Stream(episode, scales)
    network.eval()
    with torch.no_grad():
        found: np.ndarray = network(network.states(stream)[stream.seen], stream.rows.target).numpy()
    return found
