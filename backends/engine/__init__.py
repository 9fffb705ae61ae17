"""A pure model of inference engines: continuous batching, Ollama's slots, and hardware profiles.

Nothing here reads a clock or does I/O. Every method gets `now`, in seconds of the profile. A caller that runs faster
than real time scales the time itself.
"""

from backends.engine.compiled import Engine
from backends.engine.profiles import UnknownProfile, names, profile
from backends.engine.sequence import Progress, PromptTooLong, QueueFull, Sequence
from backends.engine.shared import engine_of
from backends.engine.slots import SlotEngine

__all__ = [
    "Engine",
    "Progress",
    "PromptTooLong",
    "QueueFull",
    "Sequence",
    "SlotEngine",
    "UnknownProfile",
    "engine_of",
    "names",
    "profile",
]
