"""Kind `vllm`. Its API is OpenAI's, with a tokenizer, usage in every event and salted prefix caches beside it."""

from backends.kind import EngineKind
from backends.openai import OpenAIBackend

VLLM = EngineKind(
    name="vllm",
    adapter=OpenAIBackend,
    health_path="/health",
    emulator="vllm",
    tokenizes=True,
    counts_each=True,
    salts_cache=True,
)
