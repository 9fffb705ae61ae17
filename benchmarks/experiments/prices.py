"""Unlike prices: what an answer costs, by prices of input and output and by how much each model writes.

A price list ranks models by the token, a bill by the answer. An *offer* is a model at a provider.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.datasets.public import read_public
from benchmarks.experiments import charts
from benchmarks.experiments.models import SET, params_b
from benchmarks.experiments.report import Results, Section, Value
from benchmarks.scenarios import load_scenario
from benchmarks.workloads.published import Count, NotNegative, Record, json_records, table
from predictors.learned.names import model_key

SCENARIO = "split-prices"
PRICES = "prices/litellm_prices.csv"
_REQUESTS = 2500
#: Models that answered fewer prompts are left out of pairs: they answered other ones.
_LEAST_SHARE = 0.98
_MOST_PAIRS = 15


@dataclass(frozen=True, slots=True)
class Offer:
    """A model at a provider: USD for a million tokens, mean USD for an answer, and mean output tokens."""

    model: str
    provider: str
    input_usd: float
    output_usd: float
    usd: float
    output_tokens: float
    params_b: float | None = None

    @property
    def name(self) -> str:
        return f"{self.model} ({self.provider})"


def sections(seed: int, data: Path | None) -> Iterator[Section]:
    """The scenario `split-prices`; from data, real prices and answers."""
    yield _section(
        "Prices: the scenario split-prices",
        [
            "Real prices of two small models at several providers (litellm's table). The lengths of answers are the scenario's:"
            " the llama model is assumed to write 1.25 times, the qwen model 0.85 times the workload's.",
        ],
        "prices_scenario",
        _of_scenario(seed),
    )
    if data is not None and (data / PRICES).is_file() and (data / SET).is_dir():
        yield _section(
            "Prices, measured: what an answer of ZeroEval costs",
            [
                "Prices of each provider in litellm's table times the tokens that each model read and wrote (ZeroEval; one name"
                " a model, prompts that all of them answered). Prices are today's, answers those of the models' time; models"
                " with hidden reasoning are left out.",
                "Tokens of different models are counted by their own tokenizers, as they are billed.",
            ],
            "prices_answers",
            _of_data(data),
        )


def inversions(offers: list[Offer]) -> list[tuple[Offer, Offer]]:
    """(cheap, dear): pairs of unlike models in which the offer with the lower prices has the dearer answer, the largest
    ratio first."""
    found = []
    for pair in combinations(offers, 2):
        cheap, dear = sorted(pair, key=lambda each: (each.output_usd, each.input_usd))
        lower = cheap.input_usd <= dear.input_usd and cheap.output_usd < dear.output_usd
        if lower and cheap.model != dear.model and cheap.usd > dear.usd:
            found.append((cheap, dear))
    return sorted(found, key=lambda each: -each[0].usd / each[1].usd)


def chatty(offers: list[Offer]) -> list[tuple[Offer, Offer]]:
    """(small, large): pairs at one provider in which the smaller model writes more, and its answer costs more."""
    found = []
    for pair in combinations(offers, 2):
        if any(each.params_b is None for each in pair) or pair[0].provider != pair[1].provider:
            continue
        small, large = sorted(pair, key=lambda each: each.params_b or 0.0)
        if (
            small.params_b != large.params_b
            and small.output_tokens > large.output_tokens
            and small.usd > large.usd
        ):
            found.append((small, large))
    return sorted(found, key=lambda each: -each[0].usd / each[1].usd)


def _section(title: str, text: list[str], name: str, offers: list[Offer]) -> Section:
    found, talking = inversions(offers), chatty(offers)
    comparable = sum(
        first.model != second.model
        and (first.input_usd - second.input_usd) * (first.output_usd - second.output_usd) >= 0
        for first, second in combinations(offers, 2)
    )
    text = [
        *text,
        f"In {comparable:,} pairs of offers of different models, one offer has lower or equal prices for both input and output."
        f" In {len(found):,} of these pairs the answer of that offer costs more.",
    ]
    if any(each.params_b is not None for each in offers):
        text.append(
            f"In {len(talking):,} pairs at one provider the smaller model writes more and its answer costs more."
        )
    named = [each for pair in (*found[:1], *talking[:1]) for each in pair] if found else offers
    series: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for each in offers:
        series[_kind(each)].append((each.output_usd, 1000 * each.usd, each.name))
    tables = [
        Results(
            "Offers",
            ("offer", "input (USD/M)", "output (USD/M)", "mean output tokens", "USD for 1,000 answers"),
            [
                (each.name, each.input_usd, each.output_usd, each.output_tokens, 1000 * each.usd)
                for each in sorted(offers, key=lambda each: each.usd)
            ],
        ),
        *(
            Results.of(f"{name}: the {_MOST_PAIRS} largest", [_pair(*each) for each in pairs[:_MOST_PAIRS]])
            for name, pairs in (
                ("Lower prices, dearer answers", found),
                ("Small and chatty, dearer than large and terse at the same provider", talking),
            )
            if pairs
        ),
    ]
    return Section(
        title,
        text,
        tables,
        [
            charts.points(
                name,
                "What 1,000 answers cost, by the price of output",
                "price of output (USD for a million tokens)",
                "USD for 1,000 answers",
                series,
                named=[each.name for each in named],
                log_y=True,
            )
        ],
    )


def _pair(costly: Offer, other: Offer) -> dict[str, Value]:
    return {
        "offer with the dearer answer": costly.name,
        "input / output (USD/M)": f"{costly.input_usd:g} / {costly.output_usd:g}",
        "output tokens": costly.output_tokens,
        "other offer": other.name,
        "its input / output (USD/M)": f"{other.input_usd:g} / {other.output_usd:g}",
        "its output tokens": other.output_tokens,
        "cost ratio of an answer": costly.usd / other.usd,
    }


def _kind(each: Offer) -> str:
    return (
        "equal price of input and output" if each.input_usd == each.output_usd else "output dearer than input"
    )


def _of_scenario(seed: int) -> list[Offer]:
    scenario = load_scenario(SCENARIO, small=True)
    _, requests = scenario.requests(seed, {})
    inputs = np.mean([each.prompt_tokens for each in requests[:_REQUESTS]])
    offers = []
    for instance in scenario.fleet.instances:
        for model, candidate in scenario.fleet.candidates(instance).items():
            lengths = [each.output_tokens for each in requests[:_REQUESTS]]
            outputs = float(np.mean([of[model] for of in lengths if isinstance(of, Mapping)]))
            input_usd, output_usd = candidate.price.input_usd_per_mtok, candidate.price.output_usd_per_mtok
            usd = float((input_usd * inputs + output_usd * outputs) / 1e6)
            offers.append(Offer(model, instance.name, input_usd, output_usd, usd, outputs))
    return offers


class _Price(Record):
    model: str
    provider: str
    mode: str
    input_usd_per_m: NotNegative
    output_usd_per_m: NotNegative


class _Prompt(Record):
    prompt_id: str
    prompt_tokens_cl100k: Count


def _of_data(data: Path) -> list[Offer]:
    prices: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for row in table(data / PRICES, _Price):
        if row.mode == "chat" and row.output_usd_per_m > 0:
            known = prices[model_key(row.model)]
            new = (row.input_usd_per_m, row.output_usd_per_m)
            known[row.provider] = min(known.get(row.provider, new), new)
    tokens: dict[str, dict[str, int]] = defaultdict(dict)
    for each in read_public(data, (SET,)).answers:
        if each.output_tokens and "@" not in each.model and model_key(each.model) in prices:
            tokens[each.model][each.prompt.rpartition("/")[2]] = each.output_tokens
    most = max(map(len, tokens.values()))
    tokens = {model: found for model, found in tokens.items() if len(found) >= _LEAST_SHARE * most}
    shared = set.intersection(*(set(found) for found in tokens.values()))
    inputs = np.mean(
        [
            row.prompt_tokens_cl100k
            for row in json_records(data / SET / "prompts.jsonl.gz", _Prompt)
            if row.prompt_id in shared
        ]
    )
    params = params_b(data)
    offers = []
    for model, found in sorted(tokens.items()):
        outputs = float(np.mean([found[prompt] for prompt in shared]))
        for provider, (input_usd, output_usd) in sorted(prices[model_key(model)].items()):
            usd = float((input_usd * inputs + output_usd * outputs) / 1e6)
            offers.append(Offer(model, provider, input_usd, output_usd, usd, outputs, params.get(model)))
    return offers
