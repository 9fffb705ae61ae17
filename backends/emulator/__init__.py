"""The emulator: the pure engine model served over real HTTP, in vLLM's and in Ollama's wire format."""
