"""The reader notices a page that does not do what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.docs.reader import Failure, Reader
from tests.unit.docs.pages import Block


def follow(reader: Reader, info: str, text: str) -> None:
    reader.follow(Block(Path("page.md"), 1, tuple(info.split()), text))


#: Serves the directory's files until SIGTERM.
FILES = """
import signal, sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

SimpleHTTPRequestHandler.protocol_version = "HTTP/1.1"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.fixture
def reader(tmp_path):
    with Reader(tmp_path) as started:
        yield started


def test_what_fails_on_the_way_fails(reader: Reader) -> None:
    for text in (
        "false\necho done\n",
        "false | cat\n",
        "echo $UNKNOWN\n",
        "headway check --config not-there.yaml\n",
    ):
        with pytest.raises(Failure):
            follow(reader, "bash run", text)


def test_variables_last_and_files_are_there(reader: Reader) -> None:
    follow(reader, "text file=note.txt", "hello\n")
    follow(reader, "bash run", "NOTE=$(cat note.txt)\nexport EXPORTED=$NOTE\n")
    follow(reader, "bash run", '[ "$NOTE" = hello ]\n')
    program = "import os\nassert os.environ['EXPORTED'] == 'hello'\nassert 'NOTE' not in os.environ\n"
    follow(reader, "python run", program)
    follow(reader, "bash", "false\n")  # not to be run


def test_a_port_is_the_same_everywhere_and_not_the_one_shown(reader: Reader) -> None:
    follow(reader, "yaml file=fleet.yaml", "server: {port: 8080}\nurl: http://127.0.0.1:8000\n")
    follow(
        reader,
        "bash run",
        "[ $(grep -o 'port: [0-9]*' fleet.yaml | grep -o '[0-9]*') = $(echo 127.0.0.1:8080 | cut -d: -f2) ]\n"
        "[ $(echo 127.0.0.1:8080) != 127.0.0.1:$((8000 + 80)) ]\n"
        "grep -q $(echo 127.0.0.1:8000) fleet.yaml\n",
    )


def test_a_refusal_fails_unless_it_is_told(reader: Reader) -> None:
    follow(reader, "text file=note.txt", "hello\n")
    follow(reader, "python file=files.py", FILES)
    follow(reader, "bash run server", "python files.py --port 9000\n")
    follow(reader, "bash run", "curl -i http://127.0.0.1:9000/note.txt\n")
    with pytest.raises(Failure):
        follow(reader, "bash run", "curl -i http://127.0.0.1:9000/missing\n")
    with pytest.raises(Failure):
        follow(reader, "bash run status=404", "curl -i http://127.0.0.1:9000/note.txt\n")
    follow(reader, "bash run status=404", "curl -i http://127.0.0.1:9000/missing\n")


def test_a_server_that_does_not_start_fails(reader: Reader) -> None:
    with pytest.raises(Failure, match="does not serve"):
        follow(reader, "bash run server", "headway serve --config not-there.yaml\n")


def test_a_change_starts_from_what_stands_there_once(reader: Reader) -> None:
    follow(reader, "text file=note.txt", "one\n\ntwo\nthree\n")
    follow(reader, "diff file=note.txt", " one\n\n-two\n+2\n+and more\n")
    follow(reader, "bash run", "cat note.txt\n")
    follow(reader, "text output", "and more\nthree\n")
    assert (reader.directory / "note.txt").read_text(encoding="utf-8") == "one\n\n2\nand more\nthree\n"
    for wrong in (" two\n+x\n", " e\n+x\n", "+x\n", "one\n+x\n"):
        with pytest.raises(Failure, match="does not have these lines"):
            follow(reader, "diff file=note.txt", wrong)
    follow(reader, "text file=note.txt", "one\none\n")
    with pytest.raises(Failure, match="once"):
        follow(reader, "diff file=note.txt", " one\n+x\n")


def test_what_is_not_printed_fails(reader: Reader) -> None:
    follow(reader, "bash run exit=3", "echo hello\nexit 3\n")
    with pytest.raises(Failure, match="not printed"):
        follow(reader, "text output", "hello\ngoodbye\n")
    with pytest.raises(Failure, match="exit code 0"):
        follow(reader, "bash run exit=3", "true\n")
