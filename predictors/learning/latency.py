"""Training of the latency model: replay, normalise, LSTM and head by gradient descent, export.

In two stages. First all of it, by truncated backpropagation along the events of many runs at once. Then the head
alone on all requests in random order: neighbours in a run are alike, so the batches of the first stage are poor
ones, and a head has most of the weights. Before, the same is done without every fourth load level, and how much too
narrow the quantiles are there is what the model's `widths` make up for.

The loss is the pinball loss of the log residual at `TAUS`, of TTFT and TPOT together. A request that never had a
first token is right-censored: only a quantile below the time that it was waited for is wrong. Every source
weighs as the square root of its requests, so that a small log of a real engine is heard beside a large emulation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from predictors.artifact import Artifact
from predictors.dataset import Dataset, DatasetError
from predictors.latency.features import EVENT_FEATURES, LATENCY_FEATURES, TARGET_FEATURES, TAUS
from predictors.latency.model import CLIP, HIDDEN, WIDTH
from predictors.learning.replay import Episode, episodes

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """`epochs` of the first stage, in steps of `chunk` events of each of `lanes` runs; `head_epochs` of the second,
    in batches of `batch` requests. `noise` is added to what the LSTM reads and gives, in standard deviations."""

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


#: Log residuals beyond this are cut: a factor of 50 off is as wrong as any.
_MOST_RESIDUAL = 4.0
_LEAST_REQUESTS = 64


def train(
    data: Dataset, *, seed: int = 1, settings: Settings | None = None, progress: Progress | None = None
) -> Artifact:
    """The same data, seed and settings give the same artifact. Raises DatasetError for data with too few requests
    or first tokens, with one TTFT throughout, or with times that are no times."""
    tell = progress or (lambda _: None)
    settings = settings or Settings()
    tell("replay")
    found = list(episodes(data))
    _check(found)
    widths = _widths(found, settings, seed, tell)
    network, scales = fit(found, settings, seed, tell)
    sources = Counter[str]()
    for each in found:
        sources[each.run.source] += len(each.targets)
    about = {
        "settings": {**asdict(settings), "seed": seed},
        "requests": dict(sorted(sources.items())),
        "runs": len(found),
    }
    return Artifact("latency", LATENCY_FEATURES, {**_arrays(network, scales), "widths": widths}, about)


def _check(found: Sequence[Episode]) -> None:
    requests = sum(len(each.targets) for each in found)
    if requests < _LEAST_REQUESTS:
        raise DatasetError(f"{requests} attempts: latency needs at least {_LEAST_REQUESTS} of them")
    known = np.concatenate([each.actual[:, 0] for each in found])
    known = known[~np.isnan(known)]
    if len(known) < _LEAST_REQUESTS:
        raise DatasetError(
            f"{len(known)} of {requests} attempts have a first token: latency needs at least {_LEAST_REQUESTS}"
        )
    if np.ptp(known) < 1e-9:
        raise DatasetError(
            f"every first token came after {math.exp(known[0]):.3g} s: nothing to learn from that"
        )


def _widths(found: Sequence[Episode], settings: Settings, seed: int, tell: Progress) -> np.ndarray:
    """(2, 5) factors of the quantiles' distances from the median, at least 1, with which they hold on load levels
    that were left out: every fourth of each source, the sources weighing the same."""
    levels: dict[str, list[str]] = {}
    for source in sorted({each.run.source for each in found}):
        of_source = {each.run.level or "" for each in found if each.run.source == source}
        levels[source] = sorted(of_source, key=lambda level: (len(level.partition(".")[0]), level))[1::4]
    out = [each for each in found if (each.run.level or "") in levels[each.run.source]]
    rest = [each for each in found if (each.run.level or "") not in levels[each.run.source]]
    widths = np.ones((2, len(TAUS)), np.float32)
    if sum(len(each.targets) for each in out) < _LEAST_REQUESTS or not rest:
        return widths
    network, scales = fit(rest, settings, seed, lambda told: tell(f"without every fourth level: {told}"))
    told = np.concatenate([predict(network, scales, each) for each in out])
    residual = np.concatenate([each.residual for each in out])
    sources = np.concatenate([np.repeat(each.run.source, len(each.targets)) for each in out])
    median = TAUS.index(0.5)
    for time in range(2):
        known = np.isfinite(residual[:, time])
        if known.sum() < _LEAST_REQUESTS:
            continue
        _, of, counts = np.unique(sources[known], return_inverse=True, return_counts=True)
        for at, tau in enumerate(TAUS):
            by = told[known, time, at] - told[known, time, median]
            if at != median:
                ratio = (residual[known, time] - told[known, time, median]) / by
                share = tau if at > median else 1.0 - tau
                widths[time, at] = max(1.0, _weighted_quantile(ratio, 1.0 / counts[of], share))
        widths[time, median + 1 :] = np.maximum.accumulate(widths[time, median + 1 :])
    return widths


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, probability: float) -> float:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, probability * below[-1])])


def _arrays(network: Network, scales: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The network's weights as `predictors.latency.model` names them."""
    state = {name: value.detach().numpy().astype(np.float32) for name, value in network.state_dict().items()}
    return {
        **scales,
        "lstm": np.concatenate([state["lstm.weight_ih_l0"].T, state["lstm.weight_hh_l0"].T]),
        "lstm_bias": state["lstm.bias_ih_l0"] + state["lstm.bias_hh_l0"],
        "join_encoding": state["join_encoding.weight"].T,
        "join_bias": state["join_encoding.bias"],
        "join_target": state["join_target.weight"].T,
        "middle": state["middle.weight"].T,
        "middle_bias": state["middle.bias"],
        "last": state["last.weight"].T,
        "last_bias": state["last.bias"],
        "skip": state["skip.weight"].T,
    }


# --- network ------------------------------------------------------------------------------------------
class Network(nn.Module):
    """The same function as `predictors.latency.model`, for training."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(len(EVENT_FEATURES), HIDDEN, batch_first=True)
        self.join_encoding = nn.Linear(HIDDEN, WIDTH)
        self.join_target = nn.Linear(len(TARGET_FEATURES), WIDTH, bias=False)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 2 * len(TAUS))
        self.skip = nn.Linear(len(TARGET_FEATURES), 2 * len(TAUS), bias=False)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():  # it begins as the corrected estimate
            self.last.weight.mul_(0.1)
            self.last.bias.zero_()
            self.skip.weight.zero_()

    def states(self, stream: Stream) -> torch.Tensor:
        """(E + 1, HIDDEN): the state before the first event of a run and after each."""
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
    """Weighted mean over requests, of what is known of each."""
    taus = quantiles.new_tensor(TAUS)
    error = torch.nan_to_num(rows.residual)[:, :, None] - quantiles
    loss = (torch.maximum(taus * error, (taus - 1.0) * error).mean(2) * ~torch.isnan(rows.residual)).sum(1)
    short = ((rows.longer_than[:, None] - quantiles[:, 0]).clamp(min=0.0) * taus).mean(1)
    return ((loss + short) * rows.weight).sum() / rows.weight.sum()


# --- data ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Rows:
    """Requests: normalised `target` rows, log `residual` of TTFT and TPOT (N, 2) with NaN for unknown, the least that
    a censored one of TTFT can be (`longer_than`, else -inf), and how much each weighs."""

    target: torch.Tensor
    residual: torch.Tensor
    longer_than: torch.Tensor
    weight: torch.Tensor

    def take(self, which: torch.Tensor) -> Rows:
        return Rows(self.target[which], self.residual[which], self.longer_than[which], self.weight[which])

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        return Rows(
            torch.cat([each.target for each in parts]),
            torch.cat([each.residual for each in parts]),
            torch.cat([each.longer_than for each in parts]),
            torch.cat([each.weight for each in parts]),
        )


class Stream:
    """One run: its normalised `events`, its requests, and how many events each of these has `seen`."""

    def __init__(self, episode: Episode, scales: dict[str, np.ndarray], weight: float = 1.0) -> None:
        self.events = _tensor(_normal(episode.events, scales["event_mean"], scales["event_scale"]))
        self.seen = torch.from_numpy(episode.seen)
        self.rows = Rows(
            _tensor(_normal(episode.targets, scales["target_mean"], scales["target_scale"])),
            _tensor(np.clip(episode.residual, -_MOST_RESIDUAL, _MOST_RESIDUAL)),
            _tensor(np.minimum(episode.longer_than - episode.corrected[:, 0], _MOST_RESIDUAL)),
            torch.full((len(episode.targets),), weight),
        )


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def _normal(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip((rows - mean) / scale, -CLIP, CLIP))


def _weights(found: Sequence[Episode]) -> list[float]:
    """What a request of each episode weighs; their mean is 1."""
    requests = Counter[str]()
    for each in found:
        requests[each.run.source] += len(each.targets)
    sizes = [len(each.targets) for each in found]
    weights = np.array([requests[each.run.source] ** -0.5 for each in found])
    normal: list[float] = (weights / np.average(weights, weights=sizes)).tolist()
    return normal


def _scales(found: Sequence[Episode], weights: Sequence[float]) -> dict[str, np.ndarray]:
    """Mean and standard deviation of every feature; 1 for one that does not vary."""
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


# --- fitting ------------------------------------------------------------------------------------------
def fit(
    found: Sequence[Episode], settings: Settings, seed: int, tell: Progress
) -> tuple[Network, dict[str, np.ndarray]]:
    """Both stages; the network, and the scales that its rows are normalised with."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    weights = _weights(found)
    scales = _scales(found, weights)
    streams = [Stream(each, scales, weight) for each, weight in zip(found, weights, strict=True)]
    network = Network(settings.dropout)
    _fit_all(network, streams, settings, np.random.default_rng(seed), tell)
    _fit_head(network, streams, settings, tell)
    network.eval()
    return network, scales


def _fit_all(
    network: Network, streams: Sequence[Stream], settings: Settings, rng: np.random.Generator, tell: Progress
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
        tell(f"LSTM, epoch {epoch + 1} of {settings.epochs}: loss {np.mean(losses):.4f}")


def _batches(
    network: Network, streams: Sequence[Stream], settings: Settings, rng: np.random.Generator
) -> Iterator[tuple[float, torch.Tensor, Rows]]:
    """(part of the epoch that is done, states, requests that met them) over all streams once, in lanes: in each
    one run after another, whose state is carried on from chunk to chunk."""
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


def _fit_head(network: Network, streams: Sequence[Stream], settings: Settings, tell: Progress) -> None:
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
        tell(f"head, epoch {epoch + 1} of {settings.head_epochs}: loss {np.mean(losses):.4f}")


def _set_rate(optimizer: torch.optim.Optimizer, rate: float, part: float) -> None:
    """Warm up over the first twentieth, then fall to nothing along a cosine."""
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, 20.0 * part + 0.01) * 0.5 * (1.0 + math.cos(math.pi * part))


def predict(network: Network, scales: dict[str, np.ndarray], episode: Episode) -> np.ndarray:
    """(N, 2, 5) quantiles of the log residual for a whole episode, as serving gives them one by one."""
    stream = Stream(episode, scales)
    network.eval()
    with torch.no_grad():
        found: np.ndarray = network(network.states(stream)[stream.seen], stream.rows.target).numpy()
    return found
