"""Learns what each instance has in its prefix cache: prompts that it prefilled (`prefix_index`), and conversations.

Prefix hashes cover only a prompt's first PREFIX_TOKENS tokens. Beyond them an instance has the prompt and the answer of a
session's earlier request, with which the session's next prompt begins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from predictors.online.candidate_stats import PendingTtft
from predictors.online.fleet_stats import FleetStats
from predictors.online.learner import EndEvent, Learner
from predictors.online.observation import CandidateKey, Hash, Several, Tokens
from predictors.online.prefix_index import PrefixIndex
from router.core.types import PREFIX_TOKENS, Request


class SessionIndex:
    """Tokens of each session's last request by instance, for at most `max_sessions` sessions each."""

    def __init__(self, max_sessions: int = 4096) -> None:
        self.max_sessions = max_sessions
        self._held: dict[str, OrderedDict[str, float]] = {}

    def held_tokens(self, instance: str, session: str) -> float:
        """Tokens of the session's last request there, 0 if there was none. Changes nothing."""
        held = self._held.get(instance)
        return 0.0 if held is None else held.get(session, 0.0)

    def add(self, instance: str, session: str, tokens: float) -> None:
        """The instance has served a request of the session with this many tokens of prompt and answer."""
        held = self._held.setdefault(instance, OrderedDict())
        held[session] = tokens
        held.move_to_end(session)
        if len(held) > self.max_sessions:
            held.popitem(last=False)

    def forget(self, instance: str) -> None:
        """The instance has left the fleet or restarted."""
        self._held.pop(instance, None)


@dataclass(slots=True)
class PromptCached:
    """The instance has cached a prompt with these leading blocks, and this many tokens of a session, in the router's
    estimate."""

    candidate: CandidateKey
    prefix: Several[Hash]
    session: str | None
    tokens: Tokens


class PromptCaches(Learner[PromptCached]):
    """A prompt counts as cached after its first token, its answer after its end."""

    observations = (PromptCached,)

    def __init__(self, stats: FleetStats) -> None:
        super().__init__(stats)
        self.prefixes = PrefixIndex()
        self.sessions = SessionIndex()

    def cached_tokens(self, request: Request, instance: str) -> float:
        """Prompt tokens, in the router's estimate, that are probably cached: those of the matching hashes. If all
        hashes match, or the request has none, also the cached tokens of its session."""
        prefix, hashed_tokens = request.prefix, 0.0
        if prefix:
            matched = self.prefixes.matched_blocks(instance, prefix)
            if matched:
                hashed_tokens = min(request.prompt_tokens, PREFIX_TOKENS) * matched / len(prefix)
            if matched < len(prefix):
                return hashed_tokens
        if request.session is None:
            return hashed_tokens
        held_tokens = self.sessions.held_tokens(instance, request.session)
        return max(hashed_tokens, min(held_tokens, request.prompt_tokens - 1.0))

    def observe_first_token(self, attempt: PendingTtft) -> PromptCached | None:
        request = attempt.request
        if not request.prefix and request.session is None:
            return None
        return PromptCached(attempt.stats.key, request.prefix, request.session, request.prompt_tokens)

    def observe_end(self, event: EndEvent) -> PromptCached | None:
        request, stats = event.attempt.request, event.stats
        if stats is None or not request.decodes or not (request.prefix or request.session is not None):
            return None
        # Of several choices, one is continued.
        answer_tokens = event.output_tokens / max(request.choices, 1) / stats.lengths.prompt_ratio
        return PromptCached(stats.key, request.prefix, request.session, request.prompt_tokens + answer_tokens)

    def apply(self, observation: PromptCached, now: float) -> None:
        instance = observation.candidate[0]
        if observation.prefix:
            self.prefixes.add(instance, observation.prefix)
        if observation.session is not None:
            self.sessions.add(instance, observation.session, observation.tokens)

    def forget(self, instances: Collection[str]) -> None:
        for instance in instances:
            self.prefixes.forget(instance)
            self.sessions.forget(instance)
