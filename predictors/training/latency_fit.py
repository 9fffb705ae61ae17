"""Fitting of the latency model's network: everything along the events of many runs at once, then the head alone on
requests in random order (see `latency`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from predictors.learned.latency.features import EVENT_FEATURES
from predictors.learned.latency.model import HIDDEN
from predictors.training.dataset import Progress
from predictors.training.latency_network import Network, Rows, Stream, pinball_loss
from predictors.training.replay import Episode


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
