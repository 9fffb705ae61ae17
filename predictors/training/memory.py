"""Training of the memory model: replay, normalise, fit a small network on the logit of the mean KV use, export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from predictors.kernels.reference.latency_networks import CLIP, LEAST_RATIO
from predictors.learned.artifact import Artifact
from predictors.learned.memory import MEMORY_FEATURES, WIDTH, MemoryModel
from predictors.training.dataset import Dataset, DatasetError, Progress, fraction_of
from predictors.training.latency_fit import tensor
from predictors.training.memory_rows import MemoryRows, usable

#: The model must have a mean absolute error lower by this share than the closed form, on runs left out. Else the closed
#: form serves.
LEAST_GAIN = 0.15
_LEFT_OUT = 0.2
_LEAST_ROWS = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """`steps` of `batch` rows at this learning `rate`; `noise` on normalised features, in standard deviations. Dropout,
    noise and `decay` (of the hidden layer) are strong, since there are few runs."""

    steps: int = 3000
    rate: float = 3e-3
    decay: float = 0.3
    dropout: float = 0.2
    noise: float = 0.2
    batch: int = 256


class Network(nn.Module):
    """The same function as `predictors.learned.memory`, for training."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        features = len(MEMORY_FEATURES)
        self.hidden = nn.Linear(features, WIDTH)
        self.last = nn.Linear(WIDTH, 1)
        self.skip = nn.Linear(features, 1, bias=False)
        self.drop_features = nn.Dropout(dropout / 2)
        self.drop_hidden = nn.Dropout(dropout)

    def forward(self, normal: torch.Tensor) -> torch.Tensor:
        """(N,) corrections of the closed form's logit, for normalised rows."""
        hidden = self.drop_hidden(torch.relu(self.hidden(self.drop_features(normal))))
        correction: torch.Tensor = self.last(hidden) + self.skip(normal)
        return correction[:, 0]


def train(
    data: Dataset, *, seed: int = 1, progress: Progress = lambda _: None, settings: Settings | None = None
) -> Artifact:
    """A memory artifact. `about` says how much better than the closed form it is on a fifth of the runs, which the
    first fit left out. The second fit is on all runs. Raises DatasetError where it is not better enough, or where the
    data show nothing."""
    settings = settings or Settings()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    found = usable(data)
    # At least one run and never all, however few there are.
    runs = sorted({each.run.id for each in found}, key=lambda run: fraction_of(run, seed))
    chosen = set(runs[: min(max(1, round(_LEFT_OUT * len(runs))), len(runs) - 1)])
    inner = [each for each in found if each.run.id not in chosen]
    left_out = [each for each in found if each.run.id in chosen]
    rows = sum(len(each.actual) for each in inner)
    if rows < _LEAST_ROWS or not left_out:
        raise DatasetError(f"{rows} requests of {len(found) // 2} runs are too few to learn memory use from")
    progress(f"memory: {rows:,} rows of {len(inner) // 2} runs")
    first = MemoryModel.load(Artifact("memory", MEMORY_FEATURES, _fit(inner, settings, seed)))
    learned, closed = errors(first, left_out)
    progress(f"memory: mean absolute error {learned:.4f} on runs left out, closed form {closed:.4f}")
    if learned > (1 - LEAST_GAIN) * closed:
        raise DatasetError(
            f"the memory model learns too little from these data (mean absolute error {learned:.4f} on runs left "
            f"out, closed form {closed:.4f}): the closed form serves without it"
        )
    about = {
        "settings": asdict(settings),
        "runs_left_out": {"mae": round(learned, 5), "closed_form_mae": round(closed, 5)},
    }
    return Artifact("memory", MEMORY_FEATURES, _fit(found, settings, seed), about)


def errors(model: MemoryModel, found: Sequence[MemoryRows]) -> tuple[float, float]:
    """Mean absolute errors of the model and of the closed form, as means over runs."""
    learned = [float(np.mean(np.abs(model.predict(each.features) - each.actual))) for each in found]
    closed = [float(np.mean(np.abs(each.held - each.actual))) for each in found]
    return float(np.mean(learned)), float(np.mean(closed))


def _fit(found: Sequence[MemoryRows], settings: Settings, seed: int) -> dict[str, np.ndarray]:
    """The arrays of a model of these rows. The loss is the absolute error of the logit. A run weighs as the root of its
    rows, since the rows of one run are much alike."""
    torch.manual_seed(seed)
    features = np.concatenate([each.features for each in found]).astype(np.float64)
    mean, scale = features.mean(0), features.std(0)
    scale = np.where(scale > 1e-3, scale, 1.0)
    normal = tensor(np.clip((features - mean) / scale, -CLIP, CLIP))
    ratio = np.clip(np.concatenate([each.actual for each in found]), LEAST_RATIO, 1 - LEAST_RATIO)
    correction = tensor(np.log(ratio / (1 - ratio)) - features[:, 0])
    weights = np.concatenate([np.full(len(each.actual), len(each.actual) ** -0.5) for each in found])
    weight = tensor(weights / weights.mean())
    network = Network(settings.dropout)
    with torch.no_grad():  # a constant error need not be learned step by step
        network.last.bias.fill_(correction.median())
    free = [*network.skip.parameters()]
    kept_small = [*network.hidden.parameters(), *network.last.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": free, "weight_decay": 1e-3}, {"params": kept_small, "weight_decay": settings.decay}],
        lr=settings.rate,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    for _ in range(settings.steps):
        which = torch.randint(len(normal), (settings.batch,))
        rows = normal[which] + settings.noise * torch.randn(settings.batch, normal.shape[1])
        loss = ((network(rows) - correction[which]).abs() * weight[which]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {
        "mean": mean.astype(np.float32),
        "scale": scale.astype(np.float32),
        "hidden": _array(network.hidden.weight.T),
        "hidden_bias": _array(network.hidden.bias),
        "last": _array(network.last.weight[0]),
        "skip": _array(network.skip.weight[0]),
        "bias": _array(network.last.bias),
    }


def _array(values: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.detach().numpy())
