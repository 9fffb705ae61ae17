"""The latency model's network and its fit: everything along the events of many runs at once, then the head alone on requests in
random order (see `latency`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from predictors.kernels.levels import TAUS
from predictors.kernels.reference.latency_networks import CLIP
from predictors.learned.latency import EVENT_FEATURES, HIDDEN, TARGET_FEATURES, WIDTH
from predictors.training.dataset import Progress
from predictors.training.replay import Episode

#: Log residuals beyond this are cut: an error of a factor of 50 is as wrong as any larger one.
_MOST_RESIDUAL = 4.0


class Network(nn.Module):
    """The same function as `predictors.learned.latency`, for training."""

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


# --- the fit --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Settings:
    """`epochs` of the first stage, in steps of `chunk` events of each of `lanes` runs; `head_epochs` of the second, in
    batches of `batch` requests. `noise` is added to the inputs and outputs of the LSTM, in standard deviations."""

    epochs: int = 12
    rate: float = 3e-3
    chunk: int = 64
    lanes: int = 32
    head_epochs: int = 20
    head_rate: float = 3e-3
    batch: int = 512
    decay: float = 1e-3
    dropout: float = 0.1
    noise: float = 0.1


def fit(
    found: Sequence[Episode], settings: Settings, seed: int, report: Progress
) -> tuple[Network, dict[str, np.ndarray]]:
    """Both stages. Returns the network, and the scales that normalise its rows."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    weights = _weights(found)
    scales = _scales(found, weights)
    streams = [Stream(each, scales, weight) for each, weight in zip(found, weights, strict=True)]
    network = Network(settings.dropout)
    _fit_all(network, streams, settings, np.random.default_rng(seed), report)
    _fit_head(network, streams, settings, report)
    network.eval()
    return network, scales


def _fit_all(
    network: Network,
    streams: Sequence[Stream],
    settings: Settings,
    rng: np.random.Generator,
    report: Progress,
) -> None:
    optimizer = torch.optim.AdamW(network.parameters(), lr=settings.rate, weight_decay=settings.decay)
    network.train()
    for epoch in range(settings.epochs):
        losses = []
        for part, state, rows in _batches(network, streams, settings, rng):
            _set_rate(optimizer, settings.rate, (epoch + part) / settings.epochs)
            loss = pinball_loss(network(state, rows.target), rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        report(f"LSTM, epoch {epoch + 1} of {settings.epochs}: loss {np.mean(losses):.4f}")


def _batches(
    network: Network, streams: Sequence[Stream], settings: Settings, rng: np.random.Generator
) -> Iterator[tuple[float, torch.Tensor, Rows]]:
    """(finished part of the epoch, states, requests that met them) over all streams once, in lanes. A lane runs one run
    after another, and carries the state of a run from chunk to chunk."""
    chunk = settings.chunk
    waiting = [streams[index] for index in rng.permutation(len(streams))]
    chunks, done = sum(len(each.events) // chunk + 1 for each in streams), 0
    lanes: list[tuple[Stream, int]] = []
    hidden = cell = torch.zeros(1, 0, HIDDEN)
    while True:
        going = [lane for lane, (stream, start) in enumerate(lanes) if start <= len(stream.events)]
        fresh = [(waiting.pop(), 0) for _ in range(min(len(waiting), settings.lanes - len(going)))]
        lanes = [lanes[lane] for lane in going] + fresh
        if not lanes:
            return
        none = torch.zeros(1, len(fresh), HIDDEN)
        hidden, cell = (torch.cat([each[:, going].detach(), none], 1) for each in (hidden, cell))
        events = torch.zeros(len(lanes), chunk, len(EVENT_FEATURES))
        for lane, (stream, start) in enumerate(lanes):
            part = stream.events[start : start + chunk]
            events[lane, : len(part)] = part
        events += settings.noise * torch.randn(events.shape)
        out, (carried_hidden, carried_cell) = network.lstm(events, (hidden, cell))
        states = torch.cat([hidden[0][:, None], out], 1)
        met = [
            torch.nonzero((stream.seen >= start) & (stream.seen < start + chunk))[:, 0]
            for stream, start in lanes
        ]
        if any(len(which) for which in met):
            yield (
                done / chunks,
                torch.cat([
                    states[lane, stream.seen[which] - start]
                    for lane, ((stream, start), which) in enumerate(zip(lanes, met, strict=True))
                ]),
                Rows.joined([stream.rows.take(which) for (stream, _), which in zip(lanes, met, strict=True)]),
            )  # fmt: skip
        done += len(lanes)
        lanes = [(stream, start + chunk) for stream, start in lanes]
        hidden, cell = carried_hidden, carried_cell


def _fit_head(network: Network, streams: Sequence[Stream], settings: Settings, report: Progress) -> None:
    network.eval()
    with torch.no_grad():
        states = torch.cat([network.states(each)[each.seen] for each in streams])
    rows = Rows.joined([each.rows for each in streams])
    head = [each for name, each in network.named_parameters() if not name.startswith("lstm.")]
    optimizer = torch.optim.AdamW(head, lr=settings.head_rate, weight_decay=settings.decay)
    batches = max(1, len(states) // settings.batch)
    network.train()
    for epoch in range(settings.head_epochs):
        order = torch.randperm(len(states))
        losses = []
        for batch in range(batches):
            _set_rate(optimizer, settings.head_rate, (epoch + batch / batches) / settings.head_epochs)
            which = order[batch * settings.batch : (batch + 1) * settings.batch]
            state = states[which]
            state = state + settings.noise * torch.randn(state.shape)
            taken = rows.take(which)
            loss = pinball_loss(network(state, taken.target), taken)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        report(f"head, epoch {epoch + 1} of {settings.head_epochs}: loss {np.mean(losses):.4f}")


def _set_rate(optimizer: torch.optim.Optimizer, rate: float, part: float) -> None:
    """Warm up over the first twentieth, then fall to zero along a cosine."""
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, 20.0 * part + 0.01) * 0.5 * (1.0 + math.cos(math.pi * part))


def requests_by_source(found: Sequence[Episode]) -> Counter[str]:
    """The number of requests of each source."""
    requests = Counter[str]()
    for each in found:
        requests[each.run.source] += len(each.targets)
    return requests


def _weights(found: Sequence[Episode]) -> list[float]:
    """The weight of a request of each episode; their mean is 1."""
    requests = requests_by_source(found)
    sizes = [len(each.targets) for each in found]
    weights = np.array([requests[each.run.source] ** -0.5 for each in found])
    normal: list[float] = (weights / np.average(weights, weights=sizes)).tolist()
    return normal


def _scales(found: Sequence[Episode], weights: Sequence[float]) -> dict[str, np.ndarray]:
    """Mean and standard deviation of every feature; 1 for a feature that does not vary."""
    scales: dict[str, np.ndarray] = {}
    for name, parts in (
        ("event", [each.events for each in found]),
        ("target", [each.targets for each in found]),
    ):
        stacked = np.concatenate(parts).astype(np.float64)
        weight = np.repeat(weights, [len(part) for part in parts])
        mean = np.average(stacked, axis=0, weights=weight)
        deviation = np.sqrt(np.average((stacked - mean) ** 2, axis=0, weights=weight))
        scales[f"{name}_mean"] = mean.astype(np.float32)
        scales[f"{name}_scale"] = np.where(deviation > 1e-3, deviation, 1.0).astype(np.float32)
    return scales
