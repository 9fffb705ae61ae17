"""Where each published set is from, what its licence allows, and what is known to be wrong with it.

A release (`release.py`) goes by this table; the readers take the licence from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one set. `release`: its rows may be passed on for any use, for non-commercial use, or not at all; then
    `why_not` says why. `texts`: the texts of its prompts may be passed on too, except those of `withheld_tasks`."""

    title: str
    origin: str
    licence: str
    release: Literal["any", "non_commercial", "none"] = "any"
    why_not: str = ""
    texts: bool = False
    withheld_tasks: frozenset[str] = frozenset()
    faults: tuple[str, ...] = ()


TERMS: dict[str, Terms] = {
    "zeroeval": Terms(
        "GSM8K test, MATH level 5 and CRUXEval, answered by 41 to 51 models",
        "github.com/WildEval/ZeroEval, 8c1485e",
        "Apache-2.0; outputs under their providers' terms",
        texts=True,
        withheld_tasks=frozenset({"math-l5"}),
        faults=(
            "Texts of MATH are left out: its host withdrew it after a takedown request.",
            "Correctness is our scoring of the stored outputs. It agrees with the published accuracies within 0.1 points on"
            " gsm and math-l5 for most models, and within 3 points on crux, where it is more lenient. Four pairs of model and"
            " task that disagree have no correctness.",
            "Models that hide their reasoning have no lengths. Empty outputs are failed calls and have no length.",
            "Some models are there under several hosts (@sambanova, @hyperbolic, @together).",
            "gemini-1.5-flash-exp-0827 (gsm) and two files of math-l5 are partial.",
        ),
    ),
    "alpaca_eval": Terms(
        "AlpacaEval: 805 instructions answered by 58 models",
        "github.com/tatsu-lab/alpaca_eval, cd543a1",
        "CC-BY-NC-4.0",
        "none",
        "the evaluation set is CC-BY-NC-4.0, and the outputs are under each provider's own terms",
        faults=(
            "Only 32 models have wins, against two references that cannot be compared.",
            "Tokens of some models are counted by another tokenizer.",
        ),
    ),
    "arena_2023": Terms(
        "hard Chatbot Arena prompts of 2023, answered by 22 models",
        "github.com/lm-sys/FastChat, 0e6d3e4; github.com/lmarena/arena-hard-auto, 196f6b8",
        "CC-BY-4.0 prompts, CC-BY-NC-4.0 outputs",
        "non_commercial",
        "its answers are CC-BY-NC-4.0; --non-commercial adds it",
        texts=True,
        faults=(
            "Answers ended at 1,024 tokens: longer ones are marked as cut.",
            "The quality is GPT-4's grade of one answer, which 15 of the 22 models have.",
            "llama-13b is a base model that does not answer questions; it is left out.",
        ),
    ),
    "llmrouter": Terms(
        "LLMRouter: 13 task sets answered by 9 models",
        "github.com/ulab-uiuc/LLMRouter, 4e7a796",
        "MIT; questions under their own licences",
        "none",
        "its questions are from sets under their own licences, some of them share-alike; one was withdrawn",
        faults=("There are no lengths of answers.", "Questions of GPQA are left out."),
    ),
    "routellm": Terms(
        "MMLU and GSM8K answered by Mixtral 8x7B and GPT-4",
        "github.com/lm-sys/RouteLLM, 0b64fda",
        "Apache-2.0",
        texts=True,
        faults=("Only GSM8K has lengths.", "There are only two models."),
    ),
    "vllm_burst": Terms(
        "Llama-3.2-1B on one GPU of 24 GB under BurstGPT's arrivals at several speeds, with engine state",
        "github.com/liao4s/BurstGPT_test, 6088699",
        "MIT",
        faults=(
            "Output tokens are not published. The model of the GPU is not named.",
            "Prompt tokens are the published ones times 0.7985, by the engine's own count.",
        ),
    ),
    "aibrix": Terms(
        "Llama-3.1-8B on eight vLLM replicas, twelve configurations",
        "github.com/vllm-project/aibrix, e3e10f9",
        "Apache-2.0",
        faults=(
            "The replica of a request is not published: a run is the whole cluster.",
            "Which prompts were cached is inferred from the configuration and the users.",
            "Prompts have about 21,000 tokens and answers about 100: this is not chat in general.",
            "Requests that did not finish at the highest load are missing.",
        ),
    ),
    "helix": Terms(
        "LLaMA-30B and 70B in pipelines over clusters of A100, L4 and T4",
        "github.com/Thesys-lab/Helix-ASPLOS25, 148b733",
        "Apache-2.0",
        faults=(
            "A pipeline is one engine here. Slow networks are part of its times: use the ratios between GPUs.",
            "Logs above 4 MB are absent. Requests that ran at the end of a run have fewer output tokens.",
        ),
    ),
    "lmsys_chat_1m": Terms(
        "LMSYS-Chat-1M: conversations with 25 models",
        "huggingface.co/datasets/lmsys/lmsys-chat-1m",
        "LMSYS-Chat-1M Dataset License Agreement",
        "none",
        "its licence agreement does not allow to pass it on",
        faults=(
            "Lengths are estimated from characters.",
            "Only the first exchange of a conversation is read.",
        ),
    ),
    "sharegpt": Terms(
        "ShareGPT: conversations with ChatGPT that users shared",
        "huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered",
        "none that is clear",
        "none",
        "its texts have no clear licence",
        faults=(
            "The model is not named: answers are of several versions of ChatGPT.",
            "Lengths are estimated from characters.",
            "Conversations that were split by the publisher begin in the middle; these are left out.",
        ),
    ),
}
