from hypothesis import given
from hypothesis import strategies as st

from predictors.learned.text import COUNTS, HEAD_TOKENS, TAIL_TOKENS, prompt_features


def counts_of(text: str) -> dict[str, int]:
    return dict(zip(COUNTS, prompt_features(text).counts, strict=True))


@given(st.text())
def test_any_text_has_features_within_bounds(text: str) -> None:
    features = prompt_features(text)
    assert all(0 <= word < 65536 for word in features.head + features.tail)
    assert len(features.head) <= HEAD_TOKENS
    assert len(features.tail) <= TAIL_TOKENS
    assert all(count >= 0 for count in features.counts)
    assert prompt_features(text) == features


def test_case_and_values_of_numbers_do_not_count_but_digits_do() -> None:
    assert prompt_features("Add 17 apples").head == prompt_features("add 23 APPLES").head
    assert prompt_features("add 17 apples").head != prompt_features("add 1700 apples").head


def test_counts_are_of_the_text() -> None:
    found = counts_of("What is 12 + 30?\nTell me.")
    assert (found["lines"], found["digits"], found["question_marks"], found["capitals"]) == (2, 4, 1, 2)
    assert found["bytes"] == len("What is 12 + 30?\nTell me.")
    assert counts_of("é")["not_ascii"] == 1


@given(st.text(max_size=100))
def test_counts_are_what_each_sign_says_of_itself(text: str) -> None:
    found = counts_of(text)
    assert found["digits"] == sum(sign in "0123456789" for sign in text)
    assert found["signs"] == sum(sign in ".,;:!()[]{}<>=+-*/\\$_`\"'" for sign in text)
    assert found["capitals"] == sum(sign.isupper() for sign in text)
    assert found["not_ascii"] == sum(not sign.isascii() for sign in text)


def test_ascii_is_cut_as_any_other_text() -> None:
    text = "".join(map(chr, range(128))) + "don't snake_case 3.5e10\tx\x1cy\r\n\n" * 2
    assert prompt_features(text + " é").head[:-1] == prompt_features(text).head


def test_a_long_text_has_head_and_tail() -> None:
    words = [f"w{chr(97 + n % 26)}{chr(97 + n // 26 % 26)}" for n in range(3000)]
    features = prompt_features(" ".join(words))
    assert len(features.head) == HEAD_TOKENS
    assert features.tail == prompt_features(" ".join(words[-TAIL_TOKENS:])).head


def test_the_tail_does_not_repeat_the_head() -> None:
    assert prompt_features("one two three").tail == ()
    text = " ".join(["word"] * (HEAD_TOKENS + 3))
    assert len(prompt_features(text).tail) == 3


def test_empty_and_huge_texts() -> None:
    assert prompt_features("").head == ()
    assert prompt_features("x" * 2**20).head == prompt_features("x" * 2**20).head
    assert counts_of("word " * 200_000)["bytes"] == 1_000_000
    assert prompt_features("🎉" * 50).head == (prompt_features("🎉").head[0],) * 50
