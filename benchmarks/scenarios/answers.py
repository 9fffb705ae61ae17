"""Made-up answers: lengths and right or wrong by model, for workloads whose source has none.

A request has a difficulty that all models share: of models with success rates q_m, model m answers right
when rho * difficulty + sqrt(1 - rho^2) * own draw lies below the q_m-quantile of a normal distribution, so
that right answers of different models go together (a Gaussian copula) and each model keeps its rate. Its
length is the request's own, times the model's factor, times a log-normal draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from statistics import NormalDist
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from router.config.fields import Positive

_NORMAL = NormalDist()
#: The rho above (two models correlate by its square), and the spread of log lengths beside the request's own.
SHARED_DIFFICULTY = 0.7
LENGTH_SIGMA = 0.3


@dataclass(frozen=True, slots=True)
class Answers:
    """One model's answers: `length` is its factor on the request's own, `quality` its share of right ones."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    length: Positive
    quality: Annotated[Positive, Field(lt=1)]


def with_answers(
    requests: Iterable[WorkloadRequest], models: Mapping[str, Answers], seed: int
) -> Iterator[WorkloadRequest]:
    """The requests with `output_tokens` and `quality` by model; draws depend on seed, id and model alone."""
    for request in requests:
        own = request.longest_output_tokens()
        if own is None:
            raise WorkloadError(f"request {request.id}: made-up answers need the request's own output_tokens")
        difficulty = Random(f"{seed}/difficulty/{request.id}").gauss(0, 1)
        tokens, quality = {}, {}
        for model, answers in models.items():
            draw = Random(f"{seed}/answer/{request.id}/{model}")
            length = own * answers.length * math.exp(LENGTH_SIGMA * draw.gauss(0, 1))
            tokens[model] = max(1, min(round(length), request.max_tokens or 1 << 30))
            hard = SHARED_DIFFICULTY * difficulty + math.sqrt(1 - SHARED_DIFFICULTY**2) * draw.gauss(0, 1)
            quality[model] = 1.0 if hard < _NORMAL.inv_cdf(answers.quality) else 0.0
        yield replace(request, output_tokens=tokens, quality=quality)
