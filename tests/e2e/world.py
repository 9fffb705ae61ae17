"""What the end-to-end test runs over: the command as a process, an emulated fleet, prompts to ask it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

MODELS = """\
models:
  - {name: llama-3.1-8b, family: llama, context_tokens: 8192}
  - {name: qwen2.5-7b, family: qwen, context_tokens: 8192}
instances:
  - name: quick
    kind: emulated
    profile: llama-3.1-8b@a100-80g
    speed: 20
    serves: {llama-3.1-8b: meta-llama/Llama-3.1-8B-Instruct}
  - name: slow
    kind: emulated
    profile: llama-3.1-8b@l4
    speed: 20
    serves: {llama-3.1-8b: meta-llama/Llama-3.1-8B-Instruct}
  - name: desk
    kind: emulated
    emulates: ollama
    profile: qwen2.5-7b-q4@rtx-4090
    speed: 20
    serves: {qwen2.5-7b: {name: "qwen2.5:7b"}}
"""
THINGS = [
    "apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbour", "island", "jacket",
    "kettle", "ladder", "mirror", "needle", "ocean", "pillow", "quarry", "river", "saddle", "tunnel",
    "umbrella", "valley", "window", "yard", "anchor", "button", "circus", "dragon", "elbow", "falcon",
    "guitar", "hammer", "icicle", "jungle", "kitten", "lantern", "magnet", "notebook", "orchard", "parrot",
    "quilt", "rocket", "shovel", "tractor", "uncle", "violin", "wagon", "zebra",
]  # fmt: skip
#: How a prompt is put, and about how long its answer is.
WISHES = (
    ("In one word, what is a {}?", 6),
    ("Describe a {} to a child.", 60),
    ("Write a story of a {}.", 300),
)
SEED = 11


def headway(*words: str, timeout_s: float = 400.0) -> str:
    """Run the command as a user would; what it printed. It must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "router.cli", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"headway {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_prompts(path: Path) -> None:
    """Prompts whose wish tells the length of the answer, as an emulated vLLM is told it. An emulated Ollama
    draws its own, by model."""
    rng = Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        for thing in THINGS:
            for wish, tokens in WISHES:
                told = max(1, round(tokens * rng.lognormvariate(0.0, 0.25)))
                prompt = {"prompt": wish.format(thing), "output_tokens": {"llama-3.1-8b": told}}
                file.write(json.dumps(prompt) + "\n")


@contextmanager
def served(config: Path, folder: Path) -> Iterator[str]:
    """A gateway over a fleet file, as a process of its own; its URL. It is told to end on the way out."""
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "router.cli", "serve", "--config", str(config), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
        )
    try:
        told = process.stdout.readline()
        assert "listens on " in told, (folder / "serve.log").read_text(encoding="utf-8")
        yield told.split("listens on ")[1].strip()
    finally:
        process.terminate()
        process.wait(40)
        process.stdout.close()
