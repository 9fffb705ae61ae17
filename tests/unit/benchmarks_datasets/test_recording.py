"""What a gateway knows of its attempts, written down."""

from __future__ import annotations

from benchmarks.datasets.recording import Recorder
from router.core.state import Instance
from router.core.types import Candidate, Request
from tests.unit.predictors_online.attempts import sent


def test_two_attempts_of_one_request_are_kept_apart() -> None:
    recorder = Recorder({"a": "run-a", "b": "run-b"})
    request = Request("r", 0.0, "slo", ("m",), prompt_tokens=100)
    fleet = {name: Instance(name, "vllm", {"m": Candidate(name, "m", "m")}) for name in "ab"}
    first, second = (sent(recorder, request, fleet[name], now) for name, now in (("a", 0.0), ("b", 0.5)))
    recorder.observe_ttft(second, 0.2, 0.7)
    recorder.observe_loss(first, 0.7, False, 0, None, 0.7)
    recorder.observe_end(second, 30, None, 100, 0.01, 1.0)
    slow, quick = recorder.attempts
    assert (slow.run, slow.first_token_s, slow.ended_how, slow.ended_s) == ("run-a", None, "cancelled", 0.7)
    assert (quick.run, quick.first_token_s, quick.ended_how, quick.output_tokens) == ("run-b", 0.7, "ok", 30)
