"""The Ollama client over Headway: models, an answer, a stream."""

import os

from ollama import Client

key = os.environ.get("HEADWAY_KEY", "none")
client = Client(
    host=os.environ.get("HEADWAY_URL", "http://127.0.0.1:8080"), headers={"authorization": f"Bearer {key}"}
)
print([model.model for model in client.list().models])

messages = [{"role": "user", "content": "Name three rivers."}]
options = {"num_predict": 32}
answer = client.chat(model="auto", messages=messages, options=options)
print(answer.message.content)
print(answer.model, answer.eval_count)

for part in client.chat(model="auto", messages=messages, options=options, stream=True):
    print(part.message.content, end="")
print()
