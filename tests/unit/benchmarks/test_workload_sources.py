"""Every public set, in the format of its published original and of the data folder: the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.workloads.build import build
from benchmarks.workloads.fetch import download, load
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.options import BuildOptions
from benchmarks.workloads.sources import SOURCES
from benchmarks.workloads.sources.prompt_sets import prompt_id
from benchmarks.workloads.sources.source import Choices
from tests.data_files import put

NOWHERE: Mapping[str, str] = {}
DEFAULT = Choices()
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def from_folder(name: str, root: Path, choices: Choices = DEFAULT) -> list[WorkloadRequest]:
    loaded = load(SOURCES[name], [], choices, {"HEADWAY_DATA": str(root)})
    assert loaded.route == "folder"
    return loaded.requests


def from_files(name: str, files: Sequence[Path], choices: Choices = DEFAULT) -> list[WorkloadRequest]:
    loaded = load(SOURCES[name], files, choices, NOWHERE)
    assert loaded.route == "file"
    return loaded.requests


def test_azure_is_the_same_by_both_routes(tmp_path: Path) -> None:
    original = put(
        tmp_path / "AzureLLMInferenceTrace_conv.csv",
        f"{AZURE}2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:51.2224670,879,0\n",
    )
    put(
        tmp_path / "azure_llm_2023/conv.csv.gz",
        "arrival_s,context_tokens,generated_tokens\n0.000000,374,44\n4.314579,396,109\n4.541877,879,0\n",
    )
    requests = from_files("azure_conv", [original])
    assert requests == from_folder("azure_conv", tmp_path)
    assert [request.arrival_s for request in requests] == [0.0, 4.314579, 4.541877]
    assert [request.output_tokens for request in requests] == [44, 109, 1]
    assert requests[1].id == "azure_conv-1"


def test_mooncake_keeps_its_block_ids(tmp_path: Path) -> None:
    lines = (
        '{"timestamp":0,"input_length":1000,"output_length":5,"hash_ids":[0,1]}\n'
        '{"timestamp":1500,"input_length":600,"output_length":7,"hash_ids":[0,2]}\n'
    )
    put(tmp_path / "mooncake/conversation.jsonl.gz", lines)
    original = put(tmp_path / "conversation_trace.jsonl", lines)
    requests = from_files("mooncake_conversation", [original])
    assert requests == from_folder("mooncake_conversation", tmp_path)
    found = [(one.arrival_s, one.prompt_tokens, one.prefix_hashes) for one in requests]
    assert found == [(0.0, 1000, (0, 1)), (1.5, 600, (0, 2))]


@pytest.mark.parametrize(("name", "file"), [("sharegpt", "sharegpt_v3"), ("arxiv", "arxiv_summarization")])
def test_a_pair_of_lengths_is_known_by_its_row(tmp_path: Path, name: str, file: str) -> None:
    original = put(
        tmp_path / "original.csv",
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n10,9,19,1.1\n3858,133,3991,29.0\n",
    )
    put(tmp_path / f"sharegpt_lengths/{file}.csv.gz", "row,in_tokens,out_tokens\n0,3772,54\n2,3858,133\n")
    whole = {request.id: request for request in from_files(name, [original])}
    part = from_folder(name, tmp_path)
    assert len(whole) == 3
    assert [request.id for request in part] == [f"{name}-0", f"{name}-2"]
    assert [whole[request.id] for request in part] == part


PROMPTS = ["What is a queue?", "Write a 500 word essay\non rivers."]


def put_folder(folder: Path, prompts: Mapping[str, str], responses: str) -> None:
    """A prepared folder: prompts with their tasks, and the table of responses."""
    put(
        folder / "prompts.jsonl.gz",
        [
            {"prompt_id": prompt_id(prompt), "prompt": prompt, "task": task}
            for prompt, task in prompts.items()
        ],
    )
    put(folder / "responses.csv.gz", responses)


ANSWERS = {
    "Meta-Llama-3.1-8B-Instruct-Turbo": ["x" * 439, "y" * 44],
    "Qwen2-72B-Instruct": ["x" * 100, "y" * 200],
}


def test_alpaca_eval_is_the_same_by_both_routes(tmp_path: Path) -> None:
    originals = [
        put(
            tmp_path / model / "model_outputs.json",
            [
                {"dataset": "d", "instruction": prompt, "output": answer, "generator": model}
                for prompt, answer in zip(PROMPTS, answers, strict=True)
            ],
        )
        for model, answers in ANSWERS.items()
    ]
    put_folder(
        tmp_path / "alpaca_eval",
        dict.fromkeys(PROMPTS, ""),
        "prompt_id,model,out_tokens,out_chars,win_vs_gpt4t_weighted\n"
        + "".join(
            f"{prompt_id(prompt)},{model},7,{len(answer)},0.25\n"
            for model, answers in ANSWERS.items()
            for prompt, answer in zip(PROMPTS, answers, strict=True)
        ),
    )
    requests = from_files("alpaca_eval", originals)
    assert requests == from_folder("alpaca_eval", tmp_path)
    queue = next(request for request in requests if request.prompt == PROMPTS[0])
    assert queue.output_tokens == {"llama-3.1-8b": 100, "qwen2.5-72b": 23}
    assert queue.prompt_tokens == 4
    assert queue.quality is None
    native = from_folder("alpaca_eval", tmp_path, Choices(native_lengths=True, quality=True))[0]
    assert native.output_tokens == {"llama-3.1-8b": 7, "qwen2.5-72b": 7}
    assert native.quality == {"llama-3.1-8b": 0.25, "qwen2.5-72b": 0.25}


def test_zeroeval_is_the_same_by_both_routes(tmp_path: Path) -> None:
    tasks = {"gsm": ("question", "How many eggs?"), "math-l5": ("problem", "Compute $7^2$.")}
    for task, (key, prompt) in tasks.items():
        put(
            tmp_path / "originals" / task / "Meta-Llama-3.1-8B-Instruct.json",
            [{"dataset": task, key: prompt, "output": ["z" * 339], "generator": "meta"}],
        )
    put_folder(
        tmp_path / "zeroeval",
        {prompt: task for task, (_, prompt) in tasks.items()},
        "prompt_id,task,model,out_tokens,out_chars,correct\n"
        + "".join(
            f"{prompt_id(prompt)},{task},Meta-Llama-3.1-8B-Instruct,90,339,1\n"
            for task, (_, prompt) in tasks.items()
        ),
    )
    requests = from_files("zeroeval", [tmp_path / "originals"])
    assert requests == from_folder("zeroeval", tmp_path)
    lengths = {request.prompt: request.output_tokens for request in requests}
    assert lengths == {"How many eggs?": {"llama-3.1-8b": 100}, "Compute $7^2$.": {"llama-3.1-8b": 123}}
    judged = from_folder("zeroeval", tmp_path, Choices(quality=True))
    assert [request.quality for request in judged] == [{"llama-3.1-8b": 1.0}] * 2


def arena_originals(root: Path) -> Path:
    """Two questions, the answers of two models, the grades of one (one of them unreadable)."""
    models = {"Llama-2-70b-chat": "x" * 399, "vicuna-33b-v1.3": "y" * 9000}
    put(
        root / "question.jsonl",
        [
            {"question_id": f"q{place}", "category": "c", "turns": [prompt]}
            for place, prompt in enumerate(PROMPTS)
        ],
    )
    for model, answer in models.items():
        choices = [{"index": 0, "turns": [answer]}]
        put(
            root / "model_answer" / f"{model}.jsonl",
            [{"question_id": f"q{place}", "model_id": model, "choices": choices} for place in range(2)],
        )
    put(
        root / "model_judgment" / "Llama-2-70b-chat.jsonl",
        '{"question_id": "q0", "model": "Llama-2-70b-chat", "judgment": "", "score": 10}\n'
        '{"question_id": "q1", "model": "Llama-2-70b-chat", "judgment": "", "score": -1}\n',
    )
    return root


def test_arena_is_the_same_by_both_routes(tmp_path: Path) -> None:
    published = arena_originals(tmp_path / "arena-bench-v1")
    first, second = (prompt_id(prompt) for prompt in PROMPTS)
    put_folder(
        tmp_path / "arena_2023",
        dict.fromkeys(PROMPTS, ""),
        "prompt_id,model,collection,out_tokens,out_tokens_cl100k,out_chars,gpt4_score_1_10\n"
        # the other collection's answer gives way to the graded one
        f"{first},Llama-2-70b-chat,1k,5,5,20,\n"
        f"{first},Llama-2-70b-chat,bench,90,90,399,10\n"
        f"{first},vicuna-33b-v1.3,bench,1025,990,9000,\n"
        f"{second},Llama-2-70b-chat,bench,91,91,399,\n"
        f"{second},vicuna-33b-v1.3,1k,0,0,9000,\n"
        f"{second},vicuna-33b-v1.3,bench,7,7,21,\n",
    )
    quality = Choices(quality=True)
    requests = from_files("arena", [published], quality)
    assert requests == from_folder("arena", tmp_path, quality)
    queue = next(request for request in requests if request.prompt == PROMPTS[0])
    assert queue.output_tokens == {"llama-2-70b": 100, "vicuna-33b": 1024}
    assert queue.quality == {"llama-2-70b": 1.0}
    assert [request.quality for request in requests if request is not queue] == [None]
    native = {one.prompt: one for one in from_folder("arena", tmp_path, Choices(native_lengths=True))}
    assert native[PROMPTS[0]].output_tokens == {"llama-2-70b": 90, "vicuna-33b": 1025}
    assert native[PROMPTS[1]].output_tokens == {"llama-2-70b": 91, "vicuna-33b": 1}
    assert native[PROMPTS[0]].quality is None


def test_arena_is_downloaded_for_models_whose_files_are_known() -> None:
    urls = SOURCES["arena"].urls
    assert len(urls(Choices())) == 5
    assert len(urls(Choices(quality=True))) == 9
    with pytest.raises(WorkloadError, match="must be given with --file"):
        urls(Choices(models={"x": ("gpt-4-0314",)}))


def test_llmrouter_is_the_same_by_both_routes(tmp_path: Path) -> None:
    scores = {"gemma-2-9b-it": 1.0, "qwen2.5-7b-instruct": 0.25}
    originals = [
        put(tmp_path / f"{part}.json", [{"question": prompt, "scores": scores}])
        for part, prompt in zip(("train", "test"), PROMPTS, strict=True)
    ]
    put_folder(
        tmp_path / "llmrouter",
        dict.fromkeys(PROMPTS, "t"),
        "prompt_id,model,score\n"
        + "".join(
            f"{prompt_id(prompt)},{model},{score}\n" for prompt in PROMPTS for model, score in scores.items()
        ),
    )
    requests = from_files("llmrouter", originals, Choices(quality=True))
    assert requests == from_folder("llmrouter", tmp_path, Choices(quality=True))
    assert [request.quality for request in requests] == [{"qwen2.5-7b": 0.25, "gemma-2-9b": 1.0}] * 2
    assert [request.output_tokens for request in requests] == [None, None]


def test_length_and_quality_are_of_one_answer(tmp_path: Path) -> None:
    """Of several names for a model the one counts of which most is known, for both."""
    prompt = "How many eggs?"
    put_folder(
        tmp_path / "zeroeval",
        {prompt: "gsm"},
        "prompt_id,task,model,out_tokens,out_chars,correct\n"
        f"{prompt_id(prompt)},gsm,one,10,30,\n{prompt_id(prompt)},gsm,two,20,60,1\n",
    )
    models = {"m": ("one", "two")}
    plain = from_folder("zeroeval", tmp_path, Choices(models=models, native_lengths=True))
    assert plain[0].output_tokens == {"m": 10}
    judged = from_folder("zeroeval", tmp_path, Choices(models=models, native_lengths=True, quality=True))
    assert (judged[0].output_tokens, judged[0].quality) == ({"m": 20}, {"m": 1.0})


def test_many_files_have_one_checksum(tmp_path: Path) -> None:
    paths = [
        put(tmp_path / f"{place}.json", [{"question": f"{place}?", "scores": {"m": 1}}])
        for place in range(17)
    ]
    named = load(SOURCES["llmrouter"], paths[:16], DEFAULT, NOWHERE).sha256
    assert len(named) == 16
    one = load(SOURCES["llmrouter"], [tmp_path], DEFAULT, NOWHERE).sha256
    assert list(one) == ["17 files"]
    put(paths[3], [{"question": "other", "scores": {"m": 1}}])
    assert load(SOURCES["llmrouter"], [tmp_path], DEFAULT, NOWHERE).sha256 != one


def test_other_models_may_be_chosen(tmp_path: Path) -> None:
    path = put(
        tmp_path / "model_outputs.json",
        [{"instruction": "Hi", "output": "abcd" * 10, "generator": "phi-2"}],
    )
    (by_default,) = from_files("alpaca_eval", [path])
    assert by_default.output_tokens == {"phi-2": 9}
    (chosen,) = from_files("alpaca_eval", [path], Choices(models={"small": ("phi-2",)}))
    assert chosen.output_tokens == {"small": 9}
    with pytest.raises(WorkloadError, match="no answers of 'phi-3'"):
        from_files("alpaca_eval", [path], Choices(models={"small": ("phi-3",)}))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("azure_conv", "a,b\n1,2\n", "line 1: column TIMESTAMP is missing"),
        ("azure_conv", f"{AZURE}noon,1,2\n", "line 2: TIMESTAMP: must be a valid datetime"),
        ("azure_conv", f"{AZURE}2023-11-16 18:15:46,x,2\n", "line 2: ContextTokens: must be a whole number"),
        ("azure_conv", AZURE, "holds no row"),
        (
            "sharegpt",
            "num_prefill_tokens,num_decode_tokens\n5,0\n",
            "line 2: num_decode_tokens: must be at least 1",
        ),
        (
            "mooncake_synthetic",
            '{"timestamp":0,"input_length":1,"output_length":1}\n',
            "line 1: hash_ids: is missing",
        ),
        ("mooncake_synthetic", "{\n", "line 1: not valid JSON"),
        ("alpaca_eval", "{}", "must be a list of JSON objects"),
        ("alpaca_eval", '[{"instruction": 1}]', "item 1: instruction: must be text"),
        ("zeroeval", '[{"dataset": "x"}]', "item 1: dataset: must be 'gsm', 'math-l5'"),
        ("zeroeval", '[{"dataset": "gsm"}]', "item 1: question: is missing"),
        ("arena", '{"question_id": "q"}', "line 1: turns: is missing"),
        ("arena", '{"question_id": "q", "model": "m", "score": 11}', "line 1: score: must be at most 10"),
        ("arena", '{"question_id": "q", "model_id": "m", "choices": []}', "line 1: choices: must have"),
        ("llmrouter", '[{"question": 1, "scores": {}}]', "item 1: question: must be text"),
        ("llmrouter", '[{"question": "q", "scores": {"m": 2}}]', "scores.m: must be at most 1"),
    ],
)
def test_a_wrong_file_is_named_with_line_and_reason(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    path = put(tmp_path / "file.json", text)
    with pytest.raises(WorkloadError) as caught:
        from_files(name, [path])
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_routes_that_are_closed_say_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such file"):
        from_files("azure_conv", [tmp_path / "nothing.csv"])
    with pytest.raises(WorkloadError, match="no such folder"):
        load(SOURCES["azure_conv"], [], Choices(), {"HEADWAY_DATA": str(tmp_path / "nothing")})
    with pytest.raises(WorkloadError, match="alpaca_eval: --quality needs the data folder"):
        load(SOURCES["alpaca_eval"], [], Choices(quality=True), {"XDG_CACHE_HOME": str(tmp_path)})
    with pytest.raises(WorkloadError, match=r"cannot download .*give the published file with --file"):
        download("http://127.0.0.1:1/trace.csv", {"XDG_CACHE_HOME": str(tmp_path)})
    assert not list(tmp_path.rglob("*.part"))


def test_every_source_has_pinned_addresses() -> None:
    for source in SOURCES.values():
        for url in source.urls(Choices()):
            assert url.startswith("https://raw.githubusercontent.com/")
            assert any(len(part) == 40 for part in url.split("/"))


def test_build_from_one_set_with_texts_of_another(tmp_path: Path) -> None:
    trace = put(
        tmp_path / "trace.csv",
        AZURE + "".join(f"2023-11-16 18:15:{second:02}.0000000,30,{second + 1}\n" for second in range(10)),
    )
    texts = put(
        tmp_path / "model_outputs.json",
        [
            {"instruction": f"Question {index}?", "output": "a" * 88, "generator": "phi-2"}
            for index in range(4)
        ],
    )
    files = {"azure_conv": [trace], "alpaca_eval": [texts]}
    header, requests = build("azure_conv", BuildOptions(files=files, prompts="alpaca_eval"), NOWHERE)
    assert header.length_wins == "azure_conv: prompts of alpaca_eval are lengthened or cut to prompt_tokens"
    assert header.source == "azure_conv + alpaca_eval"
    assert [request.prompt_tokens for request in requests] == [30] * 10
    assert [request.output_tokens for request in requests] == list(range(1, 11))
    assert len({request.prompt for request in requests}) == 10  # repeated texts are numbered
    assert requests[4].prompt == f"[2] {requests[0].prompt}"
    own, kept = build(
        "azure_conv", BuildOptions(files=files, prompts="alpaca_eval", length_wins="prompts"), NOWHERE
    )
    assert own.length_wins == "alpaca_eval: its own prompt and answer lengths are kept"
    assert kept[0].prompt_tokens == 3
    assert kept[0].output_tokens == {"phi-2": 20}
    swapped_header, swapped = build("alpaca_eval", BuildOptions(files=files, arrivals="azure_conv"), NOWHERE)
    assert swapped_header.details["arrivals_from"] == "azure_conv"
    assert [request.arrival_s for request in swapped] == [0.0, 1.0, 2.0, 3.0]
    _, lengths = build(
        "poisson", BuildOptions(files={"azure_conv": [trace]}, lengths="azure_conv", limit=12), NOWHERE
    )
    assert {request.prompt_tokens for request in lengths} == {30}
