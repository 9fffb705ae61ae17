"""LangChain over Headway: an answer, a stream, and a chain."""

import os

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

llm = ChatOpenAI(
    model="auto",
    base_url=os.environ.get("HEADWAY_URL", "http://127.0.0.1:8080") + "/v1",
    api_key=os.environ.get("HEADWAY_KEY", "none"),
    max_tokens=32,
    extra_body={"routing": {"policy": "latency"}},
)

answer = llm.invoke("Name three rivers.")
print(answer.text)
print(answer.response_metadata["model_name"], answer.usage_metadata)

for chunk in llm.stream("Name three lakes."):
    print(chunk.text, end="")
print()

chain = ChatPromptTemplate.from_template("Name three {things}.") | llm | StrOutputParser()
print(chain.invoke({"things": "mountains"}))
