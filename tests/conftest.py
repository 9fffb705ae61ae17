"""What holds for all tests: threads, the profile of hypothesis, and what the collector of garbage skips."""

import gc
import os

from hypothesis import HealthCheck, settings

# A process of pytest has one core. Threads of numerical libraries beside it would wait for each other. The libraries read
# this when they are loaded, and so do the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes to draw or to run says something of the machine, not of the code.
_ALL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change is judged by the same examples on every machine; new ones are looked for at night.
settings.register_profile("ci", _ALL, max_examples=60, derandomize=True)
settings.register_profile("nightly", _ALL, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish() -> None:
    """Modules and collected tests stay to the end. With them, each full collection would walk a million objects."""
    gc.collect()
    gc.freeze()
