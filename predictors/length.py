"""How long answers get: one distribution of output lengths per model, learned online.

A length is kept in a histogram over logarithmic bins (single tokens up to 8, then four bins an octave).
A model with few observations leans on its family, a family on the prior, each by `_BORROWED_WEIGHT`
pseudo-observations. Old observations fade (all counts are halved at `_MAX_WEIGHT`).

The prior is log-normal with median 182 tokens and log standard deviation 0.91: the fit to equal parts of
the Azure LLM inference trace of 2023 (conversations), ShareGPT answers and ZeroEval answers (51 models),
which have p10 / p50 / p90 of 64 / 183 / 508 tokens.

An answer that stopped at its cap only tells that it would have been at least that long. Its weight is
spread over the bins above the cap in proportion to what the distribution expects there (the
self-consistent estimate of Efron, 1967).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import erf, exp, log, sqrt

#: Prior of log output length; see the module's docstring.
PRIOR_LOG_MEDIAN = 5.20
PRIOR_LOG_SD = 0.91
#: Prior mean prompt, tokens: the mean of the same trace (1,180) and ShareGPT (250), between the two.
PRIOR_PROMPT_TOKENS = 500.0

_BORROWED_WEIGHT = 8.0
_MAX_WEIGHT = 4096.0
_LARGEST_TOKENS = 262_144.0
_PROMPT_RATE = 1 / 64


def _bin_edges() -> list[float]:
    edges = [0.5 + n for n in range(9)]
    while edges[-1] < _LARGEST_TOKENS:
        edges.append(edges[-1] * 2**0.25)
    return edges


EDGES = _bin_edges()
_BINS = len(EDGES) - 1
_MIDDLES = [(low + high) / 2 for low, high in pairwise(EDGES)]


def _prior_shares() -> list[float]:
    def below(tokens: float) -> float:
        return 0.5 * (1 + erf((log(tokens) - PRIOR_LOG_MEDIAN) / (PRIOR_LOG_SD * sqrt(2))))

    shares = [below(high) - below(low) for low, high in pairwise(EDGES)]
    total = sum(shares)
    return [share / total for share in shares]


PRIOR_SHARES = _prior_shares()


class LengthDistribution:
    """Distribution of one model's (or family's) output length Y in tokens.

    `parent` lends shares until there is own data. The derived tables are refreshed now and then, not at
    each observation; `p50`, `p90`, `mean` are without a cap.
    """

    __slots__ = (
        "_above",
        "_below",
        "_below_mean",
        "_counts",
        "_density",
        "_stale",
        "_weight",
        "mean",
        "observed",
        "p50",
        "p90",
        "p95",
        "parent",
        "shares",
    )

    def __init__(self, parent: LengthDistribution | None = None) -> None:
        self.parent = parent
        self.observed = 0  # answers seen, ever
        self.shares: list[float] = PRIOR_SHARES  # of the bins
        self.mean: float
        self.p50: float
        self.p90: float
        self.p95: float
        self._below: list[float]  # P(Y <= left edge of the bin)
        self._below_mean: list[float]  # E[Y; Y <= left edge]
        self._density: list[float]
        self._counts = [0.0] * _BINS
        self._weight = 0.0
        self._stale = 0
        self._refresh()

    def observe(self, tokens: int, *, censored: bool = False) -> None:
        """Learn from an answer of `tokens`; `censored` says that it was cut there."""
        self.observed += 1
        if self._weight >= _MAX_WEIGHT:
            self._counts = [count / 2 for count in self._counts]
            self._weight /= 2
        self._weight += 1.0
        at = min(max(bisect_right(EDGES, max(tokens, 1)) - 1, 0), _BINS - 1)
        above = 1.0 - self._below[at] if censored else 0.0
        if above > 1e-9:
            shares, counts = self.shares, self._counts
            for index in range(at, _BINS):
                counts[index] += shares[index] / above
        else:
            self._counts[at] += 1.0
        self._stale += 1
        if self._stale >= 32 or self._stale * 16 > self.observed:
            self._refresh()

    def below(self, tokens: float) -> float:
        """P(Y <= tokens)."""
        if tokens <= 0.5:
            return 0.0
        at = bisect_right(EDGES, tokens) - 1
        if at >= _BINS:
            return 1.0
        return self._below[at] + (tokens - EDGES[at]) * self._density[at]

    def mean_below(self, cap_tokens: float) -> float:
        """E[min(Y, cap)] in tokens."""
        at = bisect_right(EDGES, cap_tokens) - 1
        if at >= _BINS:
            return self.mean
        if at < 0:
            return cap_tokens
        low = EDGES[at]
        inside = (cap_tokens - low) * self._density[at]  # P(low < Y <= cap)
        return (
            self._below_mean[at]
            + inside * (low + cap_tokens) / 2
            + (1.0 - self._below[at] - inside) * cap_tokens
        )

    def quantile(self, probability: float) -> float:
        """Length in tokens that Y stays below with the given probability."""
        at = min(max(bisect_right(self._below, probability) - 1, 0), _BINS - 1)
        density = self._density[at]
        if density <= 0.0:
            return EDGES[at]
        return min(EDGES[at] + (probability - self._below[at]) / density, EDGES[at + 1])

    def _refresh(self) -> None:
        borrowed = self.parent.shares if self.parent is not None else PRIOR_SHARES
        scale = 1.0 / (self._weight + _BORROWED_WEIGHT)
        shares = [
            (count + _BORROWED_WEIGHT * share) * scale
            for count, share in zip(self._counts, borrowed, strict=True)
        ]
        below, below_mean = [0.0], [0.0]
        total = total_mean = 0.0
        for share, middle in zip(shares, _MIDDLES, strict=True):
            total += share
            total_mean += share * middle
            below.append(total)
            below_mean.append(total_mean)
        self.shares = shares
        self._below = below
        self._below_mean = below_mean
        self._density = [
            share / (high - low) for share, (low, high) in zip(shares, pairwise(EDGES), strict=True)
        ]
        self.mean = total_mean
        self.p50 = self.quantile(0.5)
        self.p90 = self.quantile(0.9)
        self.p95 = self.quantile(0.95)
        self._stale = 0


class ModelLengths:
    """What is learned of one model: output lengths, mean prompt, and how the engine's count of prompt
    tokens compares with the router's estimate."""

    __slots__ = ("_prompts", "mean_prompt_tokens", "output", "prompt_log_ratio", "prompt_ratio")

    def __init__(self, family: LengthDistribution | None) -> None:
        self.output = LengthDistribution(family)
        self.mean_prompt_tokens = PRIOR_PROMPT_TOKENS
        self.prompt_log_ratio = 0.0
        self.prompt_ratio = 1.0  # engine's prompt tokens / estimate
        self._prompts = 0

    def observe_prompt(self, estimated_tokens: int, engine_tokens: int) -> None:
        """Learn from the engine's own count of a prompt."""
        if estimated_tokens <= 0 or engine_tokens <= 0:
            return
        self._prompts += 1
        rate = max(1.0 / (self._prompts + 1), _PROMPT_RATE)
        self.mean_prompt_tokens += rate * (engine_tokens - self.mean_prompt_tokens)
        ratio = min(max(engine_tokens / estimated_tokens, 0.1), 10.0)
        self.prompt_log_ratio += rate * (log(ratio) - self.prompt_log_ratio)
        self.prompt_ratio = exp(self.prompt_log_ratio)


class Lengths:
    """`ModelLengths` by model name, sharing inside families."""

    def __init__(self) -> None:
        self._models: dict[str, ModelLengths] = {}
        self._families: dict[str, LengthDistribution] = {}

    def of(self, model: str, family: str | None = None) -> ModelLengths:
        """The entry of a model, made when first asked for."""
        entry = self._models.get(model)
        if entry is None:
            shared = None
            if family is not None:
                shared = self._families.get(family)
                if shared is None:
                    shared = self._families[family] = LengthDistribution()
            entry = self._models[model] = ModelLengths(shared)
        return entry

    def observe(
        self,
        model: str,
        family: str | None,
        output_tokens: int,
        max_tokens: int | None = None,
        choices: int = 1,
    ) -> None:
        """Learn from an ended answer; `output_tokens` are those of all choices, `max_tokens` caps each."""
        each = max(1, round(output_tokens / max(choices, 1)))
        censored = max_tokens is not None and each >= max_tokens
        output = self.of(model, family).output
        if output.parent is not None:
            output.parent.observe(each, censored=censored)
        output.observe(each, censored=censored)
