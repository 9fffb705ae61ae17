"""What a judge model is asked, and how its verdict is read.

The form for one answer has the parts, tags and six steps of Flow-Judge-v0.1's template (`prompt_formatter.py` of
flowaicom/flow-judge), in words of our own: goal, inputs, output, criteria and a rubric of five, instructions, and a verdict of
`<feedback>` and `<score>`. It is one user message at temperature 0.1 and top_p 0.95, as there. The form for two answers has the
same parts. It is asked twice with the answers in both orders, because judges favour one position.
"""

from __future__ import annotations

import re
from typing import Any

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
#: The most and the usual tokens of a verdict: a few sentences and a grade.
VERDICT_TOKENS, USUAL_VERDICT_TOKENS = 1000, 150
#: The tokens of the form without prompt and answer.
FORM_TOKENS = 510

_INPUT = """# INPUT
Below are the inputs of the task:
<inputs>
<query>
{prompt}
</query>
</inputs>

"""
_QUESTION = (
    """# GOAL
Your job is to evaluate a task carried out by an AI system powered by a large language model.
You will be given the inputs and the output of the task, and the evaluation criteria and scoring rubric. Evaluate \
the output by the criteria and the rubric.

"""
    + _INPUT
    + """# OUTPUT
Below is the output of the task:
<output>
<response>
{answer}
</response>
</output>

# EVALUATION CRITERIA AND SCORING RUBRIC
Evaluate the task by these criteria and this rubric:
<evaluation_criteria>
{criteria}
</evaluation_criteria>

<scoring_rubric>
{rubric}
</scoring_rubric>

# INSTRUCTIONS FOR THE EVALUATION
1. Understand the task and the criteria: read the evaluation criteria, and what each score of the rubric stands for.
2. Review the inputs and the output: see what was asked, and what the AI system answered.
3. Compare the output with the description of each score, and find the description that fits it best.
4. Then look at small details: one of them can decide between two scores.
5. Write verbal feedback with the reasons for your evaluation: name parts of the output and compare them with the rubric.
6. Assign the final score by the rubric.

## FORMAT FOR THE EVALUATION
- Write the verbal feedback inside <feedback> tags, without any additional surrounding text.
- Write the numeric score inside <score> tags, always after the feedback and without any additional surrounding text.

Evaluate the task with care. Keep strictly to the evaluation criteria and the rubric.
"""
)
_PAIR_QUESTION = (
    """# GOAL
Your job is to compare how two AI systems powered by large language models carried out the same task.
You will be given the inputs and both outputs of the task, and the evaluation criteria. Say which output is better by \
the criteria. The order of the outputs means nothing.

"""
    + _INPUT
    + """# OUTPUTS
Below are the outputs of the task:
<output_a>
{first}
</output_a>
<output_b>
{second}
</output_b>

# EVALUATION CRITERIA
<evaluation_criteria>
{criteria}
</evaluation_criteria>

# INSTRUCTIONS
- Write the verbal feedback inside <feedback> tags, without any additional surrounding text.
- Write A, B or tie inside <better> tags, always after the feedback and without any additional surrounding text.
"""
)
_SCORE = re.compile(r"<score>\s*([1-5])\s*</score>")
_BETTER = re.compile(r"<better>\s*(A|B|tie)\s*</better>", re.IGNORECASE)
_PREFERENCE = {"a": 1.0, "b": 0.0, "tie": 0.5}


def question(prompt: str, answer: str) -> str:
    """The judge's one message about an answer."""
    rubric = "\n".join(f"- Score {score}: {text}" for score, text in enumerate(RUBRIC, start=1))
    # One pass, so that braces in a prompt or an answer stay what they are.
    return _QUESTION.format(prompt=prompt, answer=answer, criteria=CRITERIA, rubric=rubric)


def pair_question(prompt: str, first: str, second: str) -> str:
    """The judge's one message about two answers."""
    return _PAIR_QUESTION.format(prompt=prompt, first=first, second=second, criteria=CRITERIA)


def body_of(model: str, message: str) -> dict[str, Any]:
    """The chat that asks a judge, in OpenAI's form."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": message}],
        "temperature": 0.1,
        "top_p": 0.95,
        "max_tokens": VERDICT_TOKENS,
    }


def quality_of(verdict: str) -> float | None:
    """(score - 1) / 4 of the last score in a verdict; None without a score."""
    scores = _SCORE.findall(verdict)
    return (int(scores[-1]) - 1) / 4 if scores else None


def preference_of(verdict: str) -> float | None:
    """1 if the last preference in a verdict is for the first answer, 0 for the second, 0.5 for a tie; None without one."""
    found = _BETTER.findall(verdict)
    return _PREFERENCE[found[-1].lower()] if found else None
