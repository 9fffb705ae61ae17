"""Ollama's API, served by translation: requests in, answers out, and the catalogue. No I/O here."""

from router.gateway.ollama_answer import (
    NdjsonStream,
    Timings,
    embed_from_openai,
    embeddings_from_openai,
    loaded,
    rfc3339,
    whole,
)
from router.gateway.ollama_catalog import (
    OLLAMA_VERSION,
    ModelCard,
    error_body,
    parameter_size,
    ps,
    refusal_body,
    show,
    tagged,
    tags,
    version,
)
from router.gateway.ollama_request import (
    Translated,
    asked_model,
    chat_to_openai,
    embed_to_openai,
    embeddings_to_openai,
    generate_to_openai,
    keep_alive_s,
)

__all__ = [
    "OLLAMA_VERSION",
    "ModelCard",
    "NdjsonStream",
    "Timings",
    "Translated",
    "asked_model",
    "chat_to_openai",
    "embed_from_openai",
    "embed_to_openai",
    "embeddings_from_openai",
    "embeddings_to_openai",
    "error_body",
    "generate_to_openai",
    "keep_alive_s",
    "loaded",
    "parameter_size",
    "ps",
    "refusal_body",
    "rfc3339",
    "show",
    "tagged",
    "tags",
    "version",
    "whole",
]
