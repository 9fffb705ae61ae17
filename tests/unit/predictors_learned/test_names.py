import pytest

from predictors.learned.names import family_of, model_key, version_of


@pytest.mark.parametrize(
    "names",
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama3.1:8b", "llama-3.1-8b", "Llama-3.1-8B-Inst@host"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct-Turbo", "llama3.1:70b"),
        (
            "llama3.1:8b-instruct-q4_K_M",
            "llama3.1:8b-instruct-q8_0",
            "llama3.1:8b-instruct-fp16",
            "llama3.1:8b",
        ),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5:7b", "qwen-2.5-7b", "Qwen2.5-7B-Instruct-AWQ"),
        ("Qwen-14B-Chat", "qwen:14b"),
        ("google/gemma-2-9b-it", "gemma2:9b"),
        ("gpt4_0613", "gpt-4-0314", "gpt-4"),
        ("gpt4_1106_preview", "gpt-4-1106-preview"),
    ],
)
def test_names_of_one_model_have_one_key(names: tuple[str, ...]) -> None:
    assert len({model_key(name) for name in names}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("llama3.1:8b", "llama3.1:70b"),
        ("llama3:8b", "llama3.1:8b"),
        ("gpt-4-turbo-2024-04-09", "gpt-4"),
        ("qwen2:7b", "qwen2.5:7b"),
    ],
)
def test_other_models_have_other_keys(one: str, other: str) -> None:
    assert model_key(one) != model_key(other)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Meta-Llama-3-8B-Instruct", "llama"),
        ("codellama:7b", "llama"),
        ("vicuna-13b-v1.5", "llama"),
        ("Qwen1.5-72B-Chat", "qwen"),
        ("mixtral:8x7b", "mixtral"),
        ("zephyr-7b-beta", "mistral"),
        ("microsoft/phi-4", "phi"),
        ("Yi-34B-Chat", "yi"),
        ("chatgpt-4o-latest", "gpt"),
        ("dolphin-2.9", None),
        ("my-own-model", None),
        ("", None),
    ],
)
def test_families(name: str, family: str | None) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("anthropic/claude-3-5-sonnet-20241022", "20241022"),
        ("gpt-4o-2024-08-06", "20240806"),
        ("chatgpt-4o-latest-24-09-07", "20240907"),
        ("gpt4_0613", "0613"),
        ("Qwen2.5-7B-Instruct@host", ""),
    ],
)
def test_a_version_is_the_date_in_a_name(name: str, version: str) -> None:
    assert version_of(name) == version
