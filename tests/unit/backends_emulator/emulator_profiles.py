"""Profiles for tests, and emulated engines by the event loop's time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from backends.emulator.instance import EmulatedInstance
from tests.engine_profiles import profile
from tests.virtual_time import loop_time

emulated = partial(EmulatedInstance, clock=loop_time)

#: One step a millisecond whatever the batch, 4096 tokens of KV memory, 50 ms to load.
QUICK = profile("quick-1b@bench", overhead_s=0.001, kv_capacity_tokens=4096, load_s=0.05, slots=2)
#: The same with 0.2 s a step: time enough to look at an answer in the middle.
SLOW = replace(QUICK, name="slow-1b@bench", overhead_s=0.2)
