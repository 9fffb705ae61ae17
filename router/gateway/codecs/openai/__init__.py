"""OpenAI's chats and completions: codec, errors, streamed events, non-streaming answers."""
