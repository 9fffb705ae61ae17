"""A judge model that follows a script, behind OpenAI's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The judge's content for a message and its number; None or an exception: an error, with the exception's words; bytes: the
#: response's body.
Script = Callable[[str, int], str | list[Any] | bytes | Exception | None]


class ScriptedJudge(ThreadingHTTPServer):
    """`asked` are the bodies that came, in order."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.script = script
        self.asked: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def verdict(self, body: dict[str, Any]) -> str | list[Any] | bytes | Exception | None:
        self.asked.append(body)
        return self.script(body["messages"][0]["content"], len(self.asked))


class _Answers(BaseHTTPRequestHandler):
    server: ScriptedJudge

    def do_POST(self) -> None:
        verdict = self.server.verdict(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if isinstance(verdict, bytes):
            status, data = 200, verdict
        elif isinstance(verdict, str | list):
            status, data = 200, json.dumps(completion(verdict)).encode()
        else:
            status, data = 400, json.dumps({"error": {"message": str(verdict or "no")}}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def completion(text: str | list[Any]) -> dict[str, Any]:
    """A chat completion with this text."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


@contextmanager
def judging(script: Script) -> Iterator[ScriptedJudge]:
    """A judge that runs meanwhile."""
    judge = ScriptedJudge(script)
    thread = threading.Thread(target=judge.serve_forever, daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        judge.shutdown()
        judge.server_close()
        thread.join(10)
