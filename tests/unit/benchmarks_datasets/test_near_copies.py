"""Near copies of a prompt share its group, other prompts do not."""

from __future__ import annotations

from benchmarks.datasets.groups import MOST_PROMPTS, groups, without_near_copies
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt

WORDS = [f"word{i}" for i in range(400)]


def text(start: int, length: int = 60) -> str:
    return " ".join(WORDS[start : start + length])


def test_copies_share_the_smallest_id() -> None:
    found = groups({"c": text(0), "a": text(0).upper() + "!", "b": text(100), "d": text(100) + " and more"})
    assert found == {"a": "a", "c": "a", "b": "b", "d": "b"}


def test_a_third_shared_is_too_little() -> None:
    # Of 51 shingles each: 25 words in common are 16 shingles, 30 are 21.
    assert groups({"a": text(0), "b": text(35)}) == {"a": "a", "b": "b"}
    assert groups({"a": text(0), "b": text(30)}) == {"a": "a", "b": "a"}


def test_a_short_prompt_inside_a_long_one_is_its_copy() -> None:
    assert groups({"b": text(0, 300), "a": text(20, 30)}) == {"a": "a", "b": "a"}


def test_groups_are_joined_through_others() -> None:
    found = groups({"a": text(0), "b": text(25), "c": text(50)})
    assert set(found.values()) == {"a"}


def test_a_form_that_many_prompts_have_is_no_copy() -> None:
    form = text(0, 40)
    many = {
        f"p{i:03}": f"{form} {text(60 + i, 12)}" for i in range(0, 13 * (MOST_PROMPTS + 5), 13) if i < 340
    }
    few = dict(list(many.items())[:10])
    assert set(groups(few).values()) == {"p000"}
    more = many | {f"q{i:03}": f"{form} {i} {i + 1} {i + 2} {i + 3}" for i in range(MOST_PROMPTS)}
    assert len(set(groups(more).values())) == len(more)


def test_short_prompts_are_copies_only_if_equal() -> None:
    found = groups({"a": "What is love?", "b": "what is  LOVE", "c": "What is life?", "d": ""})
    assert found == {"a": "a", "b": "a", "c": "c", "d": "d"}


def asked(**texts: str | None) -> Dataset:
    """A set that was read by itself: each prompt is its own group."""
    prompts = [
        Prompt(key, key, "made", prompt_features(each or ""), None, each) for key, each in texts.items()
    ]
    return Dataset(tuple(prompts), tuple(Answer(key, "m", output_tokens=5) for key in texts))


def test_near_copies_are_left_out_of_a_set_that_was_read_apart() -> None:
    train = asked(a=text(0), b=text(100), hidden=None)
    test = asked(c=text(0).upper() + "!", d=text(200), hidden=None)
    found, left_out = without_near_copies(test, train)
    assert [each.id for each in found.prompts] == ["d"]
    assert [each.prompt for each in found.answers] == ["d"]
    assert left_out == 2
    assert without_near_copies(asked(d=text(200)), train)[1] == 0
