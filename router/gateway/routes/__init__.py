"""What FastAPI serves: administration, keys, the overview, Ollama's catalogue, the pages."""
