"""What holds for all tests: threads, the profile of hypothesis, what the collector of garbage skips, the command, and
pages without drawings."""

import gc
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.commands import Headway

# Where the environment forbids to keep bytecode, as images of containers do, each process that a test starts would compile
# all that it imports, and pytest would rewrite all tests again in each of its processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A process of pytest has one core. Threads of numerical libraries beside it would wait for each other. The libraries read
# this when they are loaded, and so do the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes to draw or to run says something of the machine, not of the code.
_ALL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change is judged by the same examples on every machine; new ones are looked for at night.
settings.register_profile("ci", _ALL, max_examples=60, derandomize=True)
settings.register_profile("nightly", _ALL, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Modules and collected tests stay to the end: the collector of garbage need not walk their millions of objects.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def headway(capsys: pytest.CaptureFixture[str]) -> Headway:
    return Headway(capsys)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of reports without their drawings, which take longest: for tests that look at the numbers."""
    monkeypatch.setattr("benchmarks.pages.drawing.Drawing.svg", lambda drawing: "")
