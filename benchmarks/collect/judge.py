"""Scores answers by a judge model behind any OpenAI endpoint, with one rubric.

The form of the question is Flow-Judge-v0.1's (flowaicom/Flow-Judge-v0.1, Apache-2.0): goal, inputs, output,
criteria, a rubric of five, and an answer of `<feedback>` and `<score>`, asked as one user message at temperature
0.1 and top_p 0.95. Quality is (score - 1) / 4. An answer of the judge without a readable score is counted and
scores nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx2
import openai

CRITERIA = (
    "How well does the response answer the request: is it correct, complete, and does it do what was asked?"
)
RUBRIC = (
    "The response does not address the request, or is wrong throughout.",
    "The response addresses a part of the request, with serious mistakes or gaps.",
    "The response addresses the request, with mistakes or gaps that matter.",
    "The response answers the request, with only minor mistakes or gaps.",
    "The response answers the request correctly, completely and as it was asked.",
)
_QUESTION = """# GOAL
Your job is to evaluate a task carried out by an AI system powered by a large language model.
You will be given the inputs and the output of the task, and the evaluation criteria and scoring rubric. Evaluate \
the output by the criteria and the rubric.

# INPUT
Below are the inputs of the task:
<inputs>
{prompt}
</inputs>

# OUTPUT
Below is the output of the task:
<output>
{answer}
</output>

# EVALUATION CRITERIA AND SCORING RUBRIC
<evaluation_criteria>
{criteria}
</evaluation_criteria>

<scoring_rubric>
{rubric}
</scoring_rubric>

# INSTRUCTIONS
- Write the verbal feedback inside <feedback> tags, without any additional surrounding text.
- Write the numeric score inside <score> tags, always after the feedback and without any additional surrounding text.
"""
_SCORE = re.compile(r"<score>\s*([1-5])\s*</score>")
_TIMEOUT_S = 120.0
_AT_ONCE = 4
_FEEDBACK_TOKENS = 1000


@dataclass(slots=True)
class Verdicts:
    """`quality` in [0, 1] by (prompt id, model); how many answers of the judge could not be read, and how many
    calls failed."""

    quality: dict[tuple[str, str], float] = field(default_factory=dict)
    unreadable: int = 0
    failed: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"judged": len(self.quality), "unreadable": self.unreadable, "failed": self.failed}


def question(prompt: str, answer: str) -> str:
    """The judge's one message."""
    rubric = "\n".join(f"- Score {score}: {text}" for score, text in enumerate(RUBRIC, start=1))
    # One pass, so that braces in a prompt or an answer stay what they are.
    return _QUESTION.format(prompt=prompt, answer=answer, criteria=CRITERIA, rubric=rubric)


def quality_of(verdict: str) -> float | None:
    """(score - 1) / 4 of the last score in a verdict; None without a score."""
    scores = _SCORE.findall(verdict)
    return (int(scores[-1]) - 1) / 4 if scores else None


class Judge:
    """A judge model at one endpoint."""

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        self._url, self._model, self._api_key = url, model, api_key

    async def judge(
        self,
        answers: Mapping[tuple[str, str], tuple[str, str]],
        verdicts: Verdicts,
        on_progress: Callable[[int, int], None],
    ) -> None:
        """Judge all (prompt, answer) pairs, a few at once, into `verdicts`, each as it comes."""
        waiting = iter(answers.items())
        done = 0
        client = openai.AsyncOpenAI(
            base_url=f"{self._url.rstrip('/').removesuffix('/v1')}/v1",
            api_key=self._api_key or "none",
            timeout=_TIMEOUT_S,
        )

        async def work() -> None:
            nonlocal done
            for key, (prompt, answer) in waiting:
                await self._one(client, key, question(prompt, answer), verdicts)
                done += 1
                on_progress(done, len(answers))

        async with client:
            await asyncio.gather(*(work() for _ in range(_AT_ONCE)))

    async def _one(
        self, client: openai.AsyncOpenAI, key: tuple[str, str], prompt: str, verdicts: Verdicts
    ) -> None:
        try:
            answer = await client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                temperature=0.1,
                top_p=0.95,
                max_tokens=_FEEDBACK_TOKENS,
            )
            verdict = answer.choices[0].message.content or ""
        # The last four: an answer that is no chat completion.
        except (openai.OpenAIError, httpx2.HTTPError, ValueError, TypeError, AttributeError, IndexError):
            verdicts.failed += 1
            return
        quality = quality_of(verdict)
        if quality is None:
            verdicts.unreadable += 1
        else:
            verdicts.quality[key] = quality
