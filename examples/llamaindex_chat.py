"""LlamaIndex over Headway, by its Ollama class: an answer, a stream, and a prompt template."""

import os

from llama_index.core import PromptTemplate
from llama_index.llms.ollama import Ollama

llm = Ollama(
    model="auto:latency",
    base_url=os.environ.get("HEADWAY_URL", "http://127.0.0.1:8080"),
    headers={"authorization": f"Bearer {os.environ.get('HEADWAY_KEY', 'none')}"},
    context_window=8192,
    additional_kwargs={"num_predict": 32},
)

answer = llm.complete("Name three rivers.")
print(answer.text)
print(answer.raw["model"], answer.raw["eval_count"])

for part in llm.stream_complete("Name three lakes."):
    print(part.delta, end="")
print()

print(llm.predict(PromptTemplate("Name three {things}."), things="mountains"))
