"""Training of the length model: data set to artifact. `predictors.learned.length_model` describes the model.

Cross-calibration: each quarter of the prompts (whole groups of near copies) is set aside in turn, and the model is
trained on the rest. The part that was set aside shows how much too narrow or wide the distributions of each family are.
Then the network is trained once more, on everything, with those corrections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from predictors.kernels.length_bins import EDGES
from predictors.kernels.reference.length_network import (
    COMPONENTS,
    GRAMS,
    MOST_DEVIATION,
    PATCH,
    LengthNetwork,
    Vocabulary,
    familiarity,
    grams_of,
    last_patches,
    shares_of,
)
from predictors.learned.artifact import Artifact
from predictors.learned.length_model import LENGTH_FEATURES, quantiles
from predictors.learned.names import model_key
from predictors.training.dataset import Dataset, DatasetError, Progress, Prompt, fraction_of
from predictors.training.length_factors import LEAST_PROMPTS_WITH, fit_factors, standards
from predictors.training.length_net import Batch, LengthNet, LengthSettings, negative_log_likelihood
from router.core.types import PromptFeatures

LEAST_PROMPTS = 40
#: A family with at least so many groups of prompts has a correction of its own.
_LEAST_FAMILY_GROUPS = 100
#: The share of the training prompts that are less familiar than what counts as familiar, and the share of that
#: familiarity below which the prior serves. On prompts of the same kind this cost between nothing and 0.8 % of the MAE.
_UNFAMILIAR, _STRANGE = 0.01, 0.6
_SPREADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
_INTERVAL = (0.1, 0.9)


@dataclass(frozen=True)
class _Table:
    """The training data. Of answers: `prompt`, `model`, `family` (index + 1, 0: none), `tokens`, `capped`."""

    prompts: tuple[Prompt, ...]
    models: tuple[str, ...]
    families: tuple[str, ...]
    family_of_model: np.ndarray
    prompt: np.ndarray
    model: np.ndarray
    tokens: np.ndarray
    capped: np.ndarray

    @property
    def family(self) -> np.ndarray:
        found: np.ndarray = self.family_of_model[self.model]
        return found

    def part(self, keep: np.ndarray) -> _Table:
        """The part with the prompts that `keep` marks. All models stay."""
        rows = keep[self.prompt]
        return replace(
            self,
            prompts=tuple(each for each, kept in zip(self.prompts, keep, strict=True) if kept),
            prompt=(np.cumsum(keep) - 1)[self.prompt[rows]],
            model=self.model[rows],
            tokens=self.tokens[rows],
            capped=self.capped[rows],
        )


def train(
    data: Dataset,
    *,
    seed: int = 1,
    settings: LengthSettings | None = None,
    progress: Progress = lambda _: None,
) -> Artifact:
    """An artifact of kind "length" from the answers that have a length. Raises DatasetError for data that it cannot
    learn from. The same data, seed and settings give the same artifact."""
    settings = settings or LengthSettings()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    table = _table(data)

    parts = settings.calibration_parts
    part = {each.group: int(fraction_of(each.group, seed + 1000) * parts) for each in table.prompts}
    in_part = np.array([part[each.group] for each in table.prompts])
    aside = []
    for number in np.unique(in_part) if len(set(part.values())) > 1 else ():
        progress(f"calibration {number + 1} of {parts}")
        kept, out = table.part(in_part != number), table.part(in_part == number)
        aside.append((out, *_mixtures(_fit(kept, seed, settings, progress), out)))
    spreads, figures = _calibrated(aside, len(table.families))
    arrays = _fit(table, seed, settings, progress)
    # The last spread is that of an unknown family.
    arrays |= {"family_spread": spreads, "model_spread": spreads[table.family_of_model - 1]}
    about: dict[str, Any] = {"settings": asdict(settings), "inner": figures}
    return Artifact("length", LENGTH_FEATURES, _compact(arrays), about)


# --- data ---------------------------------------------------------------------------------------------
def _table(data: Dataset) -> _Table:
    answers = [each for each in data.answers if each.output_tokens is not None]
    if not answers:
        raise DatasetError("no answer in the data has a length (output_tokens)")
    for each in answers:
        if each.output_tokens == 0:
            raise DatasetError(f"an answer of {each.model} to {each.prompt} has 0 tokens")
    if all(each.capped for each in answers):
        raise DatasetError("every answer was cut at its cap: nothing tells how long they get")
    if len({each.output_tokens for each in answers}) == 1:
        raise DatasetError(
            f"all {len(answers)} answers have {answers[0].output_tokens} tokens: nothing to learn"
        )
    used = {each.prompt for each in answers}
    prompts = tuple(each for each in data.prompts if each.id in used)
    if len(prompts) < LEAST_PROMPTS:
        raise DatasetError(
            f"{len(prompts)} prompts with lengths of answers: a length predictor needs at least {LEAST_PROMPTS}"
        )
    row = {each.id: index for index, each in enumerate(prompts)}
    keys = {each.model: model_key(each.model) for each in answers}
    models = tuple(sorted(set(keys.values())))
    # Of several families of a model the first one counts.
    family_of = {keys[each.model]: each.family for each in reversed(answers) if each.family is not None}
    families = tuple(sorted(set(family_of.values())))
    column = {key: index for index, key in enumerate(models)}
    return _Table(
        prompts,
        models,
        families,
        np.array([families.index(family_of[key]) + 1 if key in family_of else 0 for key in models]),
        np.array([row[each.prompt] for each in answers]),
        np.array([column[keys[each.model]] for each in answers]),
        np.array([each.output_tokens for each in answers], float),
        np.array([each.capped for each in answers]),
    )


# --- one fit ------------------------------------------------------------------------------------------
def _fit(table: _Table, seed: int, settings: LengthSettings, report: Progress) -> dict[str, np.ndarray]:
    """The arrays of an artifact, with all spreads 1."""
    features = [each.features for each in table.prompts]
    report(f"factors of {len(features)} prompts")
    lengths = (table.prompt, table.model, np.log(table.tokens))
    groups = [each.group for each in table.prompts]
    words = _frequent_words(table.prompts, settings)
    sequences, counts = _sequences(features, words)
    factors, prompts_with, of_prompts = fit_factors(
        features, counts, groups, lengths, len(table.models), settings.factors, settings.random_features
    )
    every, mean, scale = _inputs(features, sequences, np.hstack((counts, of_prompts)))
    level = float(np.median(np.log(table.tokens)))
    net = LengthNet(settings, len(words), len(table.models), len(table.families), level)
    _train(net, table, every, seed, report)
    models, families = _embeddings(net, table)
    return {
        **factors,
        **_weights(net),
        "words": words,
        "input_mean": mean,
        "input_scale": scale,
        "models": np.array(table.models),
        "model_table": models,
        "model_spread": np.ones(len(models)),
        "families": np.array(table.families, dtype=str),
        "family_table": families,
        "family_spread": np.ones(len(families)),
        "familiar": _familiar(table.prompts, factors["grams"], prompts_with),
    }


def _frequent_words(prompts: Sequence[Prompt], settings: LengthSettings) -> np.ndarray:
    """Ids of the words that occur in enough prompts, the most frequent first."""
    each = [np.unique(np.array(p.features.head + p.features.tail, np.int64)) for p in prompts]
    count = np.bincount(np.concatenate(each), minlength=1)
    least = min(settings.least_word_prompts, max(2, len(prompts) // 20))
    order = np.argsort(-count, kind="stable")
    return order[count[order] >= least][: settings.most_words]


def _sequences(features: Sequence[PromptFeatures], words: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """(words in order of each prompt, counts (prompts, counts))."""
    vocabulary = Vocabulary.of(np.zeros(0, np.int64), words)
    sequences = [vocabulary.sequences(each) for each in features]
    pairs = zip(features, sequences, strict=True)
    return sequences, np.array([vocabulary.counts(each, sequence) for each, sequence in pairs])


def _inputs(
    features: Sequence[PromptFeatures], sequences: Sequence[np.ndarray], values: np.ndarray
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """(all prompts, the mean of the values, 1 / their standard deviation)."""
    words = np.zeros((len(features), 2, max(each.shape[1] for each in sequences), PATCH), np.int64)
    last = np.full((len(features), 2), -1)
    for row, each in enumerate(sequences):
        words[row, : len(each), : each.shape[1]] = each
        last[row, : len(each)] = last_patches(features[row])
    mean, scale = standards(values)
    cut = np.clip((values - mean) * scale, -MOST_DEVIATION, MOST_DEVIATION)
    every = Batch(torch.from_numpy(words), torch.from_numpy(last), torch.from_numpy(cut).float())
    return every, mean, scale


def _familiar(prompts: Sequence[Prompt], known: np.ndarray, prompts_with: np.ndarray) -> np.ndarray:
    """(the familiarity up to which a prompt gets the prior, the familiarity from which on it counts fully), from the
    familiarity that each training prompt would have had if it had been left out."""
    elsewhere = np.zeros(GRAMS, bool)
    elsewhere[known] = prompts_with > LEAST_PROMPTS_WITH
    found = [familiarity(elsewhere[grams_of(each.features)]) for each in prompts]
    low = float(np.quantile(found, _UNFAMILIAR))
    return np.array([_STRANGE * low, low])


def _train(net: LengthNet, table: _Table, every: Batch, seed: int, report: Progress) -> None:
    """Fits in place, and ends with the moving average of the weights."""
    settings = net.settings
    order = np.argsort(table.prompt, kind="stable")
    starts = np.searchsorted(table.prompt[order], np.arange(len(table.prompts) + 1))
    low, high = _log_edges(table)
    model, family = torch.from_numpy(table.model + 1), torch.from_numpy(table.family)
    capped = torch.from_numpy(table.capped)
    in_order = [p for name, p in net.named_parameters() if name.startswith(("words", "patch", "lstm"))]
    others = [p for name, p in net.named_parameters() if not name.startswith(("words", "patch", "lstm"))]
    optimiser = torch.optim.AdamW(
        [
            {"params": others, "lr": settings.rate, "weight_decay": settings.decay},
            {"params": in_order, "lr": settings.lstm_rate, "weight_decay": settings.lstm_decay},
        ]
    )
    batches = -(-len(table.prompts) // settings.batch_prompts)
    epochs = max(settings.epochs, -(-settings.least_steps // batches))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, [settings.rate, settings.lstm_rate], total_steps=epochs * batches, pct_start=0.1
    )
    average = [parameter.detach().clone() for parameter in net.parameters()]
    rng, step = np.random.default_rng(seed), 0
    for epoch in range(epochs):
        total = 0.0
        for rows in np.array_split(rng.permutation(len(table.prompts)), batches):
            answers = np.concatenate([order[starts[row] : starts[row + 1]] for row in rows])
            of_row = torch.from_numpy(np.repeat(np.arange(len(rows)), starts[rows + 1] - starts[rows]))
            prompts = net.prompts(every.part(rows))[of_row]
            mixture = net(prompts, net.embedding(model[answers], family[answers]))
            loss = negative_log_likelihood(mixture, low[answers], high[answers], capped[answers]).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += loss.item()
            step += 1
            with torch.no_grad():
                share = 1.0 - min(settings.averaging, step / (step + 10))
                for mean, parameter in zip(average, net.parameters(), strict=True):
                    mean.lerp_(parameter, share)
        report(f"epoch {epoch + 1} of {epochs}: loss {total / batches:.3f}")
    with torch.no_grad():
        for mean, parameter in zip(average, net.parameters(), strict=True):
            parameter.copy_(mean)
    net.eval()


def _log_edges(table: _Table) -> tuple[torch.Tensor, torch.Tensor]:
    """Logarithms of the edges of each answer's bin. For a capped answer the lower edge is that of its cap."""
    edges = np.array(EDGES)
    at = np.clip(np.searchsorted(edges, table.tokens, side="right") - 1, 0, len(edges) - 2)
    low = np.where(table.capped, np.log(table.tokens - 0.5), np.log(edges[at]))
    return torch.from_numpy(low).float(), torch.from_numpy(np.log(edges[at + 1])).float()


def _weights(net: LengthNet) -> dict[str, np.ndarray]:
    """Weights by the names of `predictors.learned.length_model`, as (in, out)."""
    found = {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}
    arrays = {
        "word_table": found["words.weight"],
        "lstm_input": found["lstm.weight_ih_l0"].T,
        "lstm_state": found["lstm.weight_hh_l0"].T,
        "lstm_bias": found["lstm.bias_ih_l0"] + found["lstm.bias_hh_l0"],
        "mix_prompt": found["mix_prompt.weight"].T,
        "mix_model": found["mix_model.weight"].T,
        "mix_bias": found["mix_model.bias"],
    }
    for name in ("patch", "dense", "trunk", "skip", "level", "tilt", "out"):
        arrays |= {f"{name}_weight": found[f"{name}.weight"].T, f"{name}_bias": found[f"{name}.bias"]}
    return arrays


def _embeddings(net: LengthNet, table: _Table) -> tuple[np.ndarray, np.ndarray]:
    """(embeddings of models, embeddings of families, with an unknown family last)."""
    with torch.no_grad():
        models = net.embedding(
            torch.arange(1, len(table.models) + 1), torch.from_numpy(table.family_of_model)
        )
        numbers = torch.tensor([*range(1, len(table.families) + 1), 0])
        families = net.embedding(torch.zeros_like(numbers), numbers)
    return models.numpy(), families.numpy()


# --- calibration --------------------------------------------------------------------------------------
def _calibrated(
    aside: Sequence[tuple[_Table, np.ndarray, np.ndarray]], families: int
) -> tuple[np.ndarray, dict[str, float]]:
    """(spread of each family and last of all answers, figures) with which 80 % intervals hold 80 % of the prompts that
    were set aside. Each part comes with the arguments of `shares_of`."""
    if not aside:
        return np.ones(families + 1), {}
    tokens, capped, family = (
        np.concatenate([getattr(table, name) for table, _, _ in aside])
        for name in ("tokens", "capped", "family")
    )
    groups = np.concatenate(
        [np.array([each.group for each in table.prompts])[table.prompt] for table, _, _ in aside]
    )
    centre, out = (np.concatenate(each) for each in list(zip(*aside, strict=True))[1:])

    def inside(shares: np.ndarray) -> np.ndarray:
        low, high = (quantiles(shares, probability) for probability in _INTERVAL)
        found: np.ndarray = (capped | (low <= tokens)) & (tokens <= high)
        return found

    def shares(spread: float) -> np.ndarray:
        return shares_of(centre, out, np.full((len(centre), 1), spread))

    held = np.array([inside(shares(spread)) for spread in _SPREADS])  # (spreads, answers)

    def fitting(rows: np.ndarray) -> float:
        share = np.maximum.accumulate(held[:, rows].mean(axis=1))
        return float(np.interp(_INTERVAL[1] - _INTERVAL[0], share, _SPREADS))

    overall = fitting(np.ones(len(tokens), bool))
    spreads = np.full(families + 1, overall)
    for number in range(1, families + 1):
        own = family == number
        if len(np.unique(groups[own])) >= _LEAST_FAMILY_GROUPS:
            spreads[number - 1] = fitting(own)
    plain = shares(1.0)
    median = quantiles(plain, 0.5)
    missed = np.where(capped, np.maximum(tokens - median, 0.0), np.abs(tokens - median))
    figures = {
        "answers": float(len(tokens)),
        "coverage_before_calibration": round(float(inside(plain).mean()), 4),
        "mae_tokens": round(float(missed.mean()), 2),
    }
    return spreads, figures


def _mixtures(arrays: dict[str, np.ndarray], table: _Table) -> tuple[np.ndarray, np.ndarray]:
    """The arguments of `shares_of`, with a row for each answer."""
    network = LengthNetwork(arrays)
    fleet = network.fleet(arrays["model_table"], arrays["model_spread"])
    order = np.argsort(table.prompt, kind="stable")
    of_prompt = np.split(order, np.searchsorted(table.prompt[order], np.arange(1, len(table.prompts))))
    centre, out = np.zeros(len(order)), np.zeros((len(order), 3 * COMPONENTS))
    for prompt, answers in zip(table.prompts, of_prompt, strict=True):
        centres, outs = network.mixtures(prompt.features, fleet)
        centre[answers], out[answers] = centres[table.model[answers]], outs[table.model[answers]]
    return centre, out


def _compact(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Half precision for the large tables, single for the rest."""
    large = ("gram_table", "word_table", "random_weight")
    return {
        name: array.astype(np.float16 if name in large else np.float32)
        if array.dtype.kind == "f"
        else array.astype(np.int32)
        if array.dtype.kind in "iu"
        else array
        for name, array in arrays.items()
    }
