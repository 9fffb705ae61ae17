"""The emulator: the pure engine model served over real HTTP, in vLLM's and in Ollama's wire format."""

from backends.emulator.instance import EmulatedInstance, serve, start_all, stop_all

__all__ = ["EmulatedInstance", "serve", "start_all", "stop_all"]
