"""What Open WebUI's backend sends to an OpenAI connection: the list of models, then a streamed chat.

Its code: backend/open_webui/routers/openai.py of https://github.com/open-webui/open-webui.
"""

import asyncio
import json
import os

import aiohttp

URL = os.environ.get("HEADWAY_URL", "http://127.0.0.1:8080") + "/v1"
HEADERS = {
    "Authorization": f"Bearer {os.environ.get('HEADWAY_KEY', 'none')}",
    "Content-Type": "application/json",
    "X-OpenWebUI-User-Id": "1",
    "X-OpenWebUI-Chat-Id": "chat-1",
}


async def main() -> None:
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        async with session.get(f"{URL}/models") as answer:
            answer.raise_for_status()
            models = [model["id"] for model in (await answer.json())["data"]]
        print(models)
        body = {
            "model": models[0],
            "messages": [{"role": "user", "content": "Name three rivers."}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 32,
        }
        async with session.post(f"{URL}/chat/completions", data=json.dumps(body)) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                text = line.decode().removeprefix("data: ").strip()
                if text and text != "[DONE]":
                    for choice in json.loads(text)["choices"]:
                        print(choice["delta"].get("content") or "", end="")
        print()


asyncio.run(main())
