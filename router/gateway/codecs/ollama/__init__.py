"""Ollama's API, served by translation."""
