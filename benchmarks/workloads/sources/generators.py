"""Workloads that need no data: arrivals from a process, lengths from log-normal distributions."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from benchmarks.workloads.format import MOST_TOKENS, PREFIX_BLOCK_TOKENS, WorkloadRequest

#: What each process is; the names are what `workload build` and `--arrivals` take.
PROCESSES: Mapping[str, str] = {
    "poisson": "independent arrivals at a constant rate",
    "gamma": "bursts: independent Gamma gaps of a given CV",
    "daycycle": "a rate that swings as a sine over a period",
}


def poisson(random_: random.Random, rate_per_s: float) -> Iterator[float]:
    """Independent exponential gaps (CV 1)."""
    return itertools.accumulate(iter(lambda: random_.expovariate(rate_per_s), None))


def gamma(random_: random.Random, rate_per_s: float, cv: float) -> Iterator[float]:
    """Independent Gamma gaps of coefficient of variation `cv` (above 1 bursty, below 1 regular): the usual renewal model of
    bursty LLM traffic (BurstGPT, arXiv 2401.17644; ServeGen, arXiv 2505.09999)."""
    shape = 1 / (cv * cv)
    scale = 1 / (rate_per_s * shape)
    return itertools.accumulate(iter(lambda: random_.gammavariate(shape, scale), None))


def day_cycle(
    random_: random.Random, rate_per_s: float, period_s: float = 86400.0, depth: float = 0.6
) -> Iterator[float]:
    """A Poisson process whose rate swings as a sine around `rate_per_s`, from (1 - depth) to (1 + depth)
    times it, starting at the low; drawn by thinning (Lewis and Shedler, 1979)."""
    peak = rate_per_s * (1 + depth)
    for at_s in poisson(random_, peak):
        rate = rate_per_s * (1 - depth * math.cos(2 * math.pi * at_s / period_s))
        if random_.random() * peak < rate:
            yield at_s


@dataclass(frozen=True, slots=True)
class Process:
    """`name` is one of `PROCESSES`."""

    name: str
    rate_per_s: float
    cv: float = 4.0
    period_s: float = 86400.0
    depth: float = 0.6

    def times(self, seed: int) -> Iterator[float]:
        """Endless arrival times in seconds."""
        random_ = random.Random(f"{seed}/arrivals/{self.name}")
        if self.name == "poisson":
            return poisson(random_, self.rate_per_s)
        if self.name == "gamma":
            return gamma(random_, self.rate_per_s, self.cv)
        return day_cycle(random_, self.rate_per_s, self.period_s, self.depth)

    def as_dict(self) -> dict[str, str | float]:
        """The settings that matter, for a header."""
        found: dict[str, str | float] = {"process": self.name, "rate_per_s": self.rate_per_s}
        if self.name == "gamma":
            found["cv"] = self.cv
        if self.name == "daycycle":
            found |= {"period_s": self.period_s, "depth": self.depth}
        return found


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: medians and sigmas (of the natural logarithm). The defaults follow the Azure
    conversation trace of 2023: input p50 / p90 1020 / 2735, output 129 / 424, so sigma = ln(p90 / p50) / 1.2816."""

    prompt_median: float = 1020.0
    prompt_sigma: float = 0.77
    output_median: float = 129.0
    output_sigma: float = 0.93

    def draw(self, random_: random.Random) -> tuple[int, int]:
        """Prompt and output tokens of one request, within what a workload can hold."""
        prompt = random_.lognormvariate(math.log(self.prompt_median), self.prompt_sigma)
        output = random_.lognormvariate(math.log(self.output_median), self.output_sigma)
        return max(1, round(min(prompt, MOST_TOKENS))), max(1, round(min(output, MOST_TOKENS)))

    def as_dict(self) -> dict[str, str | float]:
        """The settings, for a header."""
        return {"distribution": "log-normal", **asdict(self)}


def generate(name: str, lengths: Lengths, seed: int) -> Iterator[WorkloadRequest]:
    """Endless requests without arrival times."""
    random_ = random.Random(f"{seed}/lengths")
    for index in itertools.count():
        prompt_tokens, output_tokens = lengths.draw(random_)
        yield WorkloadRequest(
            id=f"{name}-{index}",
            arrival_s=0.0,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            source=name,
        )


#: Conversations that go on side by side, and where one ends because its prompt has become too long.
OPEN_CONVERSATIONS = 16
MOST_CONTEXT_TOKENS = 120_000


@dataclass(slots=True)
class _Conversation:
    name: str
    tokens: int = 0  # prompt and answer of the last turn
    blocks: tuple[int, ...] = ()


def conversations(requests: Iterable[WorkloadRequest], turns: float, seed: int) -> Iterator[WorkloadRequest]:
    """The requests as turns of conversations, `turns` on average (a geometric number): a request's own prompt
    is the new text, after all earlier text of the conversation. `prefix_hashes` tell which blocks a prompt
    shares with the turn before, `session` names the conversation. Of those open the one that has waited
    longest goes on; one that has ended makes room for a new one."""
    random_ = random.Random(f"{seed}/turns")
    waiting: deque[_Conversation] = deque()
    block = 0
    for number, request in enumerate(requests):
        full = len(waiting) >= OPEN_CONVERSATIONS
        talk = waiting.popleft() if full else _Conversation(f"{request.source}-talk-{number}")
        prompt_tokens = talk.tokens + request.prompt_tokens
        fresh = prompt_tokens // PREFIX_BLOCK_TOKENS - len(talk.blocks)
        talk.blocks += tuple(range(block, block + fresh))
        block += fresh
        talk.tokens = prompt_tokens + (request.longest_output_tokens() or 0)
        if talk.tokens < MOST_CONTEXT_TOKENS and random_.random() < 1 - 1 / turns:
            waiting.append(talk)
        yield replace(request, prompt_tokens=prompt_tokens, prefix_hashes=talk.blocks, session=talk.name)
