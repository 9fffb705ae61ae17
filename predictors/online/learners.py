"""Everything that learns while the router serves. To add a learner: its module, and its class here (CONTRIBUTING.md,
"Adding a predictor")."""

from __future__ import annotations

from typing import Any

from predictors.online.answer_lengths import AnswerLengths
from predictors.online.instance_events import InstanceEvents
from predictors.online.learner import Learner
from predictors.online.prompt_caches import PromptCaches
from predictors.online.qualities import Qualities
from predictors.online.time_errors import TpotErrors, TtftErrors
from predictors.online.tree_times import TreeTimes

LEARNERS: list[type[Learner[Any]]] = [
    PromptCaches,
    InstanceEvents,
    TtftErrors,
    TreeTimes,
    AnswerLengths,
    TpotErrors,
    Qualities,
]
