"""OpenAI's Responses API, served by translation to chats."""
