"""Near copies of a prompt share its group, other prompts do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.datasets.groups import MOST_PROMPTS, groups, join_and_group, without_near_copies
from benchmarks.datasets.release import release
from benchmarks.datasets.sources import load
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, Prompt, split_prompts, write

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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("请写一篇关于人工智能在医疗领域应用的长篇文章，并给出三个具体的案例", "请写一篇关于人工智能在医疗领域应用的长篇文章，并给出四个具体的案例"),
        ("日本語で人工知能について長い記事を書いてください例を三つ挙げてください", "日本語で人工知能について長い記事を書いてください例を四つ挙げてください"),
    ],
)  # fmt: skip
def test_text_without_spaces_is_compared_by_character(one: str, other: str) -> None:
    unlike = "春天的海边有很多人在散步和拍照，请描述一下你看到的景色。"
    assert groups({"a": one, "b": other, "c": unlike}) == {"a": "a", "b": "a", "c": "c"}


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


def grouped(data: Dataset) -> dict[str, str]:
    return {each.id: each.group for each in data.prompts}


def test_sets_that_are_joined_are_grouped_anew() -> None:
    one, other = asked(c=text(0), d=text(100), hidden=None), asked(a=text(0) + " and more", hidden=None)
    assert grouped(join_and_group([one, other])) == {"a": "a", "c": "a", "d": "d", "hidden": "hidden"}
    assert join_and_group([other, one]).prompts[0].group == "a"


def test_groups_of_a_set_stay_together() -> None:
    """Without texts their own set alone knows that they are copies; here through an id that both sets have."""
    one, other = asked(b=None, c=None), asked(a=None, b=None)
    one, other = (
        replace(each, prompts=tuple(replace(prompt, group=group) for prompt in each.prompts))
        for each, group in ((one, "b"), (other, "a"))
    )
    assert set(grouped(join_and_group([one, other])).values()) == {"a"}
    assert join_and_group([one]).prompts == one.prompts


def test_no_split_or_release_has_copies_on_both_sides(tmp_path: Path) -> None:
    about = {"sources": [{"name": "made", "licence": "ours"}]}
    for name, more in (("one", ""), ("other", " and more")):
        data = asked(**{f"{name}{n}": f"{n} ".join(WORDS[:40]) + more for n in range(30)})
        write(replace(data, about=about), tmp_path / name)
    places = [str(tmp_path / "one"), str(tmp_path / "other")]
    released = release(places, tmp_path / "out")
    for train, held_out in (split_prompts(load(places)), (released.train, released.held_out)):
        assert len(held_out.prompts) % 2 == 0
        assert held_out.prompts
        copies = {each.id.removeprefix("one").removeprefix("other") for each in train.prompts}
        assert not any(
            each.id.removeprefix("one").removeprefix("other") in copies for each in held_out.prompts
        )
