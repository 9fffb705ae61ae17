"""Kind `vllm`: OpenAI's API, plus a tokenizer, usage in every event and salted prefix caches."""

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
