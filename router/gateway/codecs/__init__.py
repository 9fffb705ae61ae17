"""How each API speaks: OpenAI's chats and completions, Responses, Ollama's."""
