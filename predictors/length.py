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
from itertools import accumulate, pairwise
from math import erf, exp, log, sqrt
from operator import mul

#: Prior of log output length; see the module's docstring.
PRIOR_LOG_MEDIAN = 5.20
PRIOR_LOG_SD = 0.91
#: Prior mean prompt, tokens: the mean of the same trace (1,180) and ShareGPT (250), between the two.
PRIOR_PROMPT_TOKENS = 500.0

_BORROWED_WEIGHT = 8.0
_MAX_WEIGHT = 4096.0
_LARGEST_TOKENS = 262_144.0
_PROMPT_MEMORY = 64
#: Derived tables may lag behind by this share of the observations, and by at most so many.
_LAG, _MOST_LAG = 1 / 16, 128


def _bin_edges() -> list[float]:
    edges = [0.5 + n for n in range(9)]
    while edges[-1] < _LARGEST_TOKENS:
        edges.append(edges[-1] * 2**0.25)
    return edges


EDGES = _bin_edges()
_BINS = len(EDGES) - 1
_MIDDLES = [(low + high) / 2 for low, high in pairwise(EDGES)]
_PER_WIDTH = [1 / (high - low) for low, high in pairwise(EDGES)]


def _bin_of(tokens: int) -> int:
    at = bisect_right(EDGES, tokens) - 1
    return 0 if at < 0 else (_BINS - 1 if at >= _BINS else at)


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
        "_censored",
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
        self._censored: dict[int, float] = {}  # not yet spread: 1 / P(Y > left edge), summed by bin
        self._weight = 0.0
        self._stale = 0
        self._refresh()

    def observe(self, tokens: int, *, censored: bool = False) -> None:
        """Learn from an answer of `tokens`; `censored` says that it was cut there."""
        self.observe_bin(_bin_of(tokens), censored)

    def observe_bin(self, at: int, censored: bool) -> None:
        """`observe` for whoever has found the bin already."""
        self.observed += 1
        if self._weight >= _MAX_WEIGHT:
            self._refresh()
            self._counts = [count / 2 for count in self._counts]
            self._weight /= 2
        self._weight += 1.0
        above = 1.0 - self._below[at] if censored else 0.0
        if above > 1e-9:
            self._censored[at] = self._censored.get(at, 0.0) + 1.0 / above
        else:
            self._counts[at] += 1.0
        self._stale = stale = self._stale + 1
        if stale >= _MOST_LAG or stale > self.observed * _LAG:
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

    def _spread_censored(self) -> None:
        """Spread the weight of cut answers over the bins above their caps, by the shares known so far."""
        weight = 0.0
        for at in range(min(self._censored), _BINS):
            weight += self._censored.get(at, 0.0)
            self._counts[at] += self.shares[at] * weight
        self._censored.clear()

    def _refresh(self) -> None:
        if self._censored:
            self._spread_censored()
        borrowed = self.parent.shares if self.parent is not None else PRIOR_SHARES
        scale = 1.0 / (self._weight + _BORROWED_WEIGHT)
        shares = [
            (count + _BORROWED_WEIGHT * share) * scale
            for count, share in zip(self._counts, borrowed, strict=True)
        ]
        self.shares = shares
        self._below = list(accumulate(shares, initial=0.0))
        self._below_mean = list(accumulate(map(mul, shares, _MIDDLES), initial=0.0))
        self._density = list(map(mul, shares, _PER_WIDTH))
        self.mean = self._below_mean[-1]
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
        rate = 1.0 / (self._prompts + 1 if self._prompts < _PROMPT_MEMORY else _PROMPT_MEMORY)
        self.mean_prompt_tokens += rate * (engine_tokens - self.mean_prompt_tokens)
        ratio = engine_tokens / estimated_tokens
        if not 0.1 <= ratio <= 10.0:
            ratio = 0.1 if ratio < 0.1 else 10.0
        self.prompt_log_ratio += rate * (log(ratio) - self.prompt_log_ratio)
        self.prompt_ratio = exp(self.prompt_log_ratio)

    def observe_output(self, output_tokens: int, max_tokens: int | None, choices: int) -> None:
        """Learn from an ended answer; `output_tokens` are those of all choices, `max_tokens` caps each."""
        each = output_tokens if choices <= 1 else round(output_tokens / choices)
        each = max(each, 1)
        censored = max_tokens is not None and each >= max_tokens
        at = _bin_of(each)
        output = self.output
        if output.parent is not None:
            output.parent.observe_bin(at, censored)
        output.observe_bin(at, censored)


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
        entry = self.of(model, family)
        entry.observe_output(output_tokens, max_tokens, choices)
