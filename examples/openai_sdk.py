"""The OpenAI SDK with Headway's routing parameters."""

import os

from openai import APIStatusError, OpenAI

client = OpenAI(
    base_url=os.environ.get("HEADWAY_URL", "http://127.0.0.1:8080") + "/v1",
    api_key=os.environ.get("HEADWAY_KEY", "none"),
)
question = [{"role": "user", "content": "Name three rivers."}]

# An instance that is likely to send the first token within 2 s, for at most a tenth of a cent.
routing = {"policy": "slo", "slo": {"ttft_ms": 2000}, "max_cost_usd": 0.001}
answer = client.chat.completions.create(
    model="auto", messages=question, max_tokens=32, extra_body={"routing": routing}
)
print(answer.choices[0].message.content)
print(answer.model, answer.model_extra["headway"])

# The same as a stream.
for chunk in client.chat.completions.create(
    model="auto:price", messages=question, max_tokens=32, stream=True
):
    print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="")
print()

# A target that no instance can keep is refused at once if the request says so.
try:
    client.chat.completions.create(
        model="auto",
        messages=question,
        extra_body={"routing": {"slo": {"ttft_ms": 0.001}, "on_miss": "reject"}},
    )
except APIStatusError as error:
    print("refused:", error.status_code, error.code)
