"""The counts of an instance's work follow what happens there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.core.state import Instance, Work
from router.core.types import LoadReport

COUNTS = st.integers(0, 9)
STEPS = st.lists(
    st.sampled_from(["dispatched", "released"])
    | st.builds(LoadReport, running=st.none() | COUNTS, waiting=st.none() | COUNTS)
    | st.builds(Work, COUNTS)
)


@given(steps=STEPS)
def test_running_is_the_report_corrected_by_our_own_attempts(steps: list[str | LoadReport | Work]) -> None:
    instance = Instance("a", "vllm", {})
    reported: int | None = None
    own = elsewhere = since = 0
    for step in steps:
        if isinstance(step, LoadReport):
            instance.takes_report(step, 0.0)
            reported = None if step.running is None else step.running + (step.waiting or 0)
            since = 0
        elif isinstance(step, Work):
            instance.shares(step)
            since += step.in_flight - elsewhere
            elsewhere = step.in_flight
        elif step == "dispatched" or own == 0:
            instance.dispatched(10)
            own, since = own + 1, since + 1
        else:
            instance.released(10, 0, decoding=False)
            own, since = own - 1, since - 1
        in_flight = own + elsewhere
        assert instance.in_flight == in_flight
        assert instance.running == (in_flight if reported is None else max(reported + since, in_flight))
