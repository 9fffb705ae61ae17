"""Prompts made up, lengthened and cut to a token count; length restriction."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.emulator.text import count_tokens, prefix_hashes
from benchmarks.workloads.format import WorkloadError, WorkloadRequest
from benchmarks.workloads.restrict import Bounds, restrict, rewrite_length_wishes
from benchmarks.workloads.text import prompt_text


def request(tokens: int, prompt: str | None = None, identity: str = "a", **more: object) -> WorkloadRequest:
    return WorkloadRequest(id=identity, arrival_s=0.0, prompt_tokens=tokens, prompt=prompt, **more)  # type: ignore[arg-type]


@given(st.integers(1, 3000), st.none() | st.text(st.characters(codec="utf-8"), max_size=60))
def test_the_text_has_exactly_the_tokens(tokens: int, prompt: str | None) -> None:
    assert count_tokens(prompt_text(request(tokens, prompt))) == tokens


def test_long_texts_too() -> None:
    assert count_tokens(prompt_text(request(100_000))) == 100_000


def test_same_seed_same_text_and_other_seed_salt_or_id_another() -> None:
    one = request(50)
    assert prompt_text(one, 1) == prompt_text(one, 1)
    others = [prompt_text(one, 2), prompt_text(one, 1, "run 2"), prompt_text(replace(one, id="b"), 1)]
    assert len({prompt_text(one, 1), *others}) == 4


def test_requests_share_no_block_by_accident() -> None:
    seen: set[int] = set()
    for index in range(300):
        hashes = prefix_hashes(prompt_text(request(64, identity=str(index))))
        assert not seen.intersection(hashes)
        seen.update(hashes)


def test_equal_prefix_ids_give_equal_blocks_and_only_those() -> None:
    one = prompt_text(request(1200, identity="a", prefix_hashes=(1, 2, 3)))
    two = prompt_text(request(1300, identity="b", prefix_hashes=(1, 2, 4)))
    assert one[: 1024 * 4] == two[: 1024 * 4]
    assert one[1024 * 4 :][:16] != two[1024 * 4 :][:16]
    assert count_tokens(one) == 1200


def test_prompt_beyond_its_prefix_ids_is_its_own() -> None:
    one = prompt_text(request(600, identity="a", prefix_hashes=(1,)))
    two = prompt_text(request(600, identity="b", prefix_hashes=(1,)))
    assert one[:2048] == two[:2048]
    assert one[2048:] != two[2048:]


def test_a_short_prompt_stays_whole_and_a_long_one_keeps_its_beginning() -> None:
    longer = prompt_text(request(100, "What is a queue?"))
    assert longer.endswith("\n\nWhat is a queue?")
    assert prompt_text(request(2, "What is a queue?")) == "What is "
    assert prompt_text(request(4, "What is a queue?")) == "What is a queue?"
    assert prompt_text(request(1, "aé€x")) == "aé."  # never half a character


@pytest.mark.parametrize(
    ("prompt", "most", "expected"),
    [
        ("Write a 2000 word essay.", 400, "Write a 300 word essay."),
        ("write a 1,000-1250 word story", 400, "write a 300 word story"),
        ("Need 300 words on rivers", 200, "Need 150 words on rivers"),
        ("Write a 500-word essay", 200, "Write a 150-word essay"),
        ("Explain it in five hundred words.", 200, "Explain it in 150 words."),
        ("Summarise the book in two paragraphs.", 140, "Summarise the book in 1 paragraph."),
        ("Write 2k words. The book has 900 pages.", 400, "Write 300 words. The book has 900 pages."),
        ("Write 100 words.", 400, "Write 100 words."),
        (
            "A textbook has 1,000 pages. How many are left?",
            100,
            "A textbook has 1,000 pages. How many are left?",
        ),
        ("Give me a list of 5 words", 5, "Give me a list of 3 words"),
    ],
)
def test_length_wishes_are_lowered_to_what_fits(prompt: str, most: int, expected: str) -> None:
    assert rewrite_length_wishes(prompt, most) == expected


def test_restrict_cuts() -> None:
    bounds = Bounds(max_prompt_tokens=600, max_output_tokens=20)
    long = request(5000, prefix_hashes=tuple(range(10)), output_tokens={"m": 50, "n": 5}, max_tokens=100)
    (got,) = restrict([long], bounds)
    assert (got.prompt_tokens, got.prefix_hashes) == (600, (0, 1))
    assert (got.output_tokens, got.max_tokens) == ({"m": 20, "n": 5}, 20)


def test_restrict_drops() -> None:
    short, fits, long, talkative = (
        request(5, output_tokens=50),
        request(50, output_tokens=50),
        request(500, output_tokens=50),
        request(50, output_tokens=500),
    )
    bounds = Bounds(
        min_prompt_tokens=10,
        max_prompt_tokens=100,
        min_output_tokens=10,
        max_output_tokens=100,
        on_long="drop",
    )
    assert [got.prompt_tokens for got in restrict([short, fits, long, talkative], bounds)] == [50]
    assert list(restrict([request(50, output_tokens=5)], bounds)) == []


def test_restrict_rewrites_before_it_counts() -> None:
    text = "Write a 2000 word essay about the sea."
    (got,) = restrict([request(count_tokens(text), text, output_tokens=900)], Bounds(max_output_tokens=100))
    assert got.prompt == "Write a 70 word essay about the sea."
    assert got.prompt_tokens == count_tokens(got.prompt)


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(WorkloadError, match="above --max-prompt-tokens"):
        Bounds(min_prompt_tokens=10, max_prompt_tokens=5)
