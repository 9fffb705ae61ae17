"""Somebody who follows a page from top to bottom with nothing but what it says, in an empty directory.

The words after a block's language say what a reader does with it:

| block | what is done |
|---|---|
| `file=NAME` (any language) | it is saved under this name |
| `diff file=NAME` | this file is changed: lines marked `-` go, lines marked `+` come; the others must stand there, once |
| `bash run` | typed into the terminal: one shell's variables last from block to block |
| `bash run server` | typed into a terminal of its own, where its last command goes on serving; the next blocks wait until it is
  ready. One that takes the port of an earlier server has that one ended first, as Ctrl-C would |
| `python run` | run in the terminal |
| `status=429` beside `run` | the answer must have this status (`curl -i` shows it); else any status of 400 and above is a failure |
| `exit=2` beside `run` | the command must end with this code |
| `text output` | what the last block printed must have these lines, each somewhere |

Pages show the usual ports. Here each one that is shown, or left at its default, is a free one, the same all over the page.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers import redis
from tests.servers.ports import HeldPort
from tests.unit.docs.pages import Block

#: Where a page shows a port.
_PORT = re.compile(r"(127\.0\.0\.1:|--port |\bport: )(\d{4,5})\b")
#: What listens on 8080 unless it is told otherwise.
_SERVES = re.compile(r"^(headway (?:serve|demo))\b", re.M)
DEFAULT_PORT = "8080"
#: `make serve` is this in an installed clone; the tests run in one, and install nothing.
MAKE_SERVE = ("make serve", "headway demo")
#: A demo's engines take as long as real ones; here they hurry.
_HURRY = "--speed 20"

#: In HOME of the terminal: curl fails where a server refuses, and shows why.
CURLRC = "fail-with-body\nsilent\nshow-error\nmax-time = 60\n"

_START_S, _BLOCK_S, _STOP_S = 60.0, 180.0, 50.0

#: A shell's variables, exported or not, outlive the process that runs a block; `declare` refuses those that are readonly.
_RESTORE = 'source "$READER_VARIABLES" 2>/dev/null || true\n'
_SAVE = '\ndeclare -p > "$READER_VARIABLES"\n'


class Failure(AssertionError):
    """A page does not do what it says."""


class Reader:
    """Follows one page in `directory`; whatever it has started is ended on the way out. `tree` is a copy of the
    repository in which it works instead of in an empty directory."""

    def __init__(self, directory: Path, tree: Path | None = None) -> None:
        for program in ("bash", "curl"):
            if shutil.which(program) is None:
                raise Failure(f"the pages use {program}, which is not installed here")
        self.directory = directory / "page" if tree is None else tree
        self.directory.mkdir(exist_ok=True)
        self._printed = ""
        self._behind = directory  # what the reader does not see
        self._ports: dict[str, HeldPort] = {}
        self._servers: dict[int, tuple[Block, subprocess.Popen[bytes]]] = {}
        tools = directory / "tools"
        tools.mkdir()
        (tools / "redis-server").symlink_to(redis.binary())
        (directory / ".curlrc").write_text(CURLRC, encoding="utf-8")
        (directory / "calm").mkdir()
        (directory / "calm" / ".curlrc").write_text(CURLRC.partition("\n")[2], encoding="utf-8")
        self._environment = {
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), str(tools), os.environ["PATH"])),
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "READER_VARIABLES": str(directory / "variables"),
            **({} if tree is None else {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for port in list(self._servers):
            self._stop(port, fails=kind is None)
        for held in self._ports.values():
            held.close()

    def follow(self, block: Block) -> None:
        """Do what a block says. Raises Failure."""
        for word in block.info[1:]:
            if word.startswith("file="):
                path = self.directory / word.removeprefix("file=")
                if block.info[0] == "diff":
                    path.write_text(changed(path, block), "utf-8")
                else:
                    path.write_text(self._placed(block.text), "utf-8")
        if "output" in block.info:
            missing = [line for line in block.text.splitlines() if line not in self._printed]
            if missing:
                raise Failure(f"{block}: not printed: {missing}\n{self._printed}")
        elif "server" in block.info:
            self._serve(block)
        elif "run" in block.info:
            self._run(block)

    # --- the terminal ----------------------------------------------------------------------------------
    def _run(self, block: Block) -> None:
        text = self._placed(block.text)
        if block.info[0] == "python":
            script = self._behind / "block.py"
            script.write_text(text, encoding="utf-8")
            text = f"python {script}\n"
        words = dict(word.split("=", 1) for word in block.info if "=" in word)
        status, code = words.get("status"), int(words.get("exit", "0"))
        curl = self._behind if status is None else self._behind / "calm"
        script_text = f"{_RESTORE}export CURL_HOME={curl}\n{text}{_SAVE}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script_text],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_BLOCK_S,
            check=False,
        )
        printed = self._printed = done.stdout.decode(errors="replace")
        if done.returncode != code or (status is not None and f"HTTP/1.1 {status}" not in printed):
            raise Failure(f"{block}: exit code {done.returncode}\n{text}\n{printed}{self._logs()}")

    # --- servers -----------------------------------------------------------------------------------------
    def _serve(self, block: Block) -> None:
        text = self._placed(block.text).replace("\\\n", " ").rstrip("\n")
        *first, last = text.split("\n")
        script = "\n".join((*first, f"exec {last}"))  # so that a signal reaches the server itself
        port = self._port_of(block, script)
        if port in self._servers:
            self._stop(port, fails=True)
        with (self._behind / f"{port}.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._servers[port] = block, process
        give_up_at = time.monotonic() + _START_S
        path = "/readyz" if _SERVES.search(last) else None
        while not _answers(port, path):
            if process.poll() is not None or time.monotonic() > give_up_at:
                self._stop(port, fails=False)
                raise Failure(f"{block}: does not serve\n{script}{self._logs()}")
            time.sleep(0.05)

    def _port_of(self, block: Block, script: str) -> int:
        """Where a server listens: what its command line says, else its fleet file."""
        found = re.search(r"--port (\d+)", script)
        config = re.search(r"--config (\S+)", script)
        if found is None and config is not None:
            found = re.search(r"\bport: (\d+)", (self.directory / config[1]).read_text(encoding="utf-8"))
        if found is None:
            raise Failure(f"{block}: nothing says which port is served")
        return int(found[1])

    def _stop(self, port: int, *, fails: bool) -> None:
        block, process = self._servers.pop(port)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failure(f"{block}: does not end{self._logs()}") from None
        if code and fails:
            raise Failure(f"{block}: ends with {code}{self._logs()}")

    def _logs(self) -> str:
        return "".join(
            f"\n--- {path.name} ---\n{path.read_text(encoding='utf-8')[-4000:]}"
            for path in sorted(self._behind.glob("*.log"))
        )

    # --- ports -------------------------------------------------------------------------------------------
    def _placed(self, text: str) -> str:
        """A block with free ports in place of those that it shows or means."""
        shown, meant = MAKE_SERVE
        text = text.replace(shown, f"{meant} {_HURRY}")
        lines = []
        for line in text.split("\n"):
            told = "--port" in line or self._names_a_port(line)
            lines.append(line if told else _SERVES.sub(rf"\1 --port {DEFAULT_PORT}", line))
        return _PORT.sub(lambda found: f"{found[1]}{self._port(found[2])}", "\n".join(lines))

    def _names_a_port(self, line: str) -> bool:
        """Whether the fleet file of a command says the port."""
        config = re.search(r"--config (\S+)", line)
        path = self.directory / config[1] if config else None
        return path is not None and path.is_file() and "port: " in path.read_text(encoding="utf-8")

    def _port(self, shown: str) -> int:
        if shown not in self._ports:
            self._ports[shown] = HeldPort()
        return self._ports[shown].number


def changed(path: Path, block: Block) -> str:
    """A file with the change that a `diff` block shows. Raises Failure unless what it starts from stands there once."""
    lines = [line or " " for line in block.text.splitlines()]
    wrong = [line for line in lines if line[:1] not in {" ", "+", "-"}]
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    text = path.read_text(encoding="utf-8")
    found = [each.start() for each in re.finditer(f"^{re.escape(before)}", text, re.M)]
    if wrong or not before or len(found) != 1:
        raise Failure(f"{block}: {path.name} does not have these lines once: {before!r} {wrong}")
    return text[: found[0]] + after + text[found[0] + len(before) :]


def _answers(port: int, path: str | None) -> bool:
    """Whether something listens on a port and, with a path, answers it with 200."""
    try:
        if path is None:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        else:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2).close()
    except (OSError, urllib.error.URLError):
        return False
    return True
