"""Training of relevance on generated prompts, where it is known what decides quality."""

import numpy as np
import pytest

from predictors.learned.artifact import to_bytes
from predictors.learned.relevance import RelevanceModel, encoder_of
from predictors.learned.text import prompt_features
from predictors.training.dataset import Answer, Dataset, DatasetError, Prompt
from predictors.training.prompt_vectors import fit_encoder
from predictors.training.relevance import train
from predictors.training.relevance_experts import fit_tasks, task_shares
from predictors.training.relevance_labels import labels_of, scale_shifts

WORDS = {
    "sums": ["apples", "sold", "price", "total", "each", "many", "dollars", "left", "twice", "bought"],
    "poems": ["poem", "rhyme", "moon", "verse", "love", "autumn", "stanza", "silver", "lyric", "haiku"],
    "code": ["function", "return", "list", "python", "bug", "loop", "string", "class", "compile", "test"],
}
#: Chance of a good answer by model and task.
CHANCES = {
    "adder": {"sums": 0.9, "poems": 0.2, "code": 0.4},
    "poet": {"sums": 0.2, "poems": 0.9, "code": 0.4},
    "coder": {"sums": 0.5, "poems": 0.3, "code": 0.9},
}


def generated(prompts: int, seed: int, shuffled: bool = False) -> Dataset:
    rng = np.random.default_rng(seed)
    tasks = rng.choice(sorted(WORDS), size=prompts)
    made, answers = [], []
    for index, task in enumerate(tasks.tolist()):
        words = [*rng.choice(WORDS[task], size=8), *rng.choice(["the", "of", "a", "please", "me"], size=6)]
        text = " ".join(rng.permutation(words).tolist())
        name = f"{seed}-{index}"
        made.append(Prompt(name, name, "made", prompt_features(text), task, text))
    acting = rng.permutation(tasks).tolist() if shuffled else tasks.tolist()
    for prompt, task in zip(made, acting, strict=True):
        for model, chance in CHANCES.items():
            good = float(rng.random() < chance[task])
            answers.append(Answer(prompt.id, model, quality=good, quality_kind="correct"))
    return Dataset(tuple(made), tuple(answers))


def within_models(model: RelevanceModel, data: Dataset) -> float:
    """Mean over models of the chance that a good answer is ranked above a bad one."""
    labels = labels_of(data)
    predicted = np.stack([model.quality(prompt.features, labels.heads)[0] for prompt in labels.prompts])
    found = []
    for head in range(len(labels.heads)):
        good = predicted[labels.quality[:, head] == 1.0, head]
        bad = predicted[labels.quality[:, head] == 0.0, head]
        above = (good[:, None] > bad).mean() + (good[:, None] == bad).mean() / 2
        found.append(float(above))
    return float(np.mean(found))


@pytest.fixture(scope="module")
def learned() -> RelevanceModel:
    return RelevanceModel.load(train(generated(400, seed=1)))


def test_learns_which_model_is_good_at_what(learned: RelevanceModel) -> None:
    test = generated(200, seed=2)
    models = ["adder", "poet", "coder"]
    best = {"sums": "adder", "poems": "poet", "code": "coder"}
    picked = [models[int(np.argmax(learned.quality(each.features, models)[0]))] for each in test.prompts]
    right = np.mean([pick == best[str(each.task)] for pick, each in zip(picked, test.prompts, strict=True)])
    assert right > 0.95
    assert within_models(learned, test) > 0.75


def test_learns_tasks_of_prompts_and_the_quality_there() -> None:
    labels, test = labels_of(generated(300, seed=11)), generated(100, seed=12)
    arrays, _ = fit_encoder(labels.prompts, seed=1, most_grams=20_000, most_directions=64)
    encoder = encoder_of(arrays)
    tasks = fit_tasks(
        np.stack([encoder.vector(prompt.features) for prompt in labels.prompts]), labels, np.arange(300)
    )
    vectors = np.stack([encoder.vector(prompt.features) for prompt in test.prompts])
    said = task_shares(tasks, vectors) @ tasks["task_departures"]
    best = {"sums": "adder", "poems": "poet", "code": "coder"}
    named = [labels.heads[head] for head in said.argmax(axis=1)]
    right = np.mean(
        [name == best[str(prompt.task)] for name, prompt in zip(named, test.prompts, strict=True)]
    )
    assert right > 0.95


def test_data_without_tasks_has_one_for_each_source() -> None:
    data = generated(60, seed=13)
    untold = tuple(Prompt(p.id, p.group, p.source, p.features) for p in data.prompts)
    labels = labels_of(Dataset(untold, data.answers))
    tasks = fit_tasks(np.ones((60, 3), dtype=np.float32), labels, np.arange(60))
    assert tasks["task_weights"].shape == (3, 1)
    assert np.allclose(tasks["task_departures"], 0.0)  # the mean of all


def test_qualities_are_what_will_be_seen(learned: RelevanceModel) -> None:
    test = generated(200, seed=3)
    for model, chances in CHANCES.items():
        for task, chance in chances.items():
            found = [learned.quality(p.features, [model])[0][0] for p in test.prompts if p.task == task]
            assert abs(float(np.mean(found)) - chance) < 0.15


def test_far_from_its_prompts_it_tells_the_overall_means(learned: RelevanceModel) -> None:
    mean, deviation, *_ = learned.quality(
        prompt_features("Ξένη γλώσσα, καμία γνωστή λέξη"), ["adder", "poet"]
    )
    overall = [np.mean(list(CHANCES[model].values())) for model in ("adder", "poet")]
    assert np.allclose(mean, overall, atol=0.1)
    assert (deviation > 0.2).all()


def test_shuffled_labels_teach_nothing_beyond_the_models_means() -> None:
    model = RelevanceModel.load(train(generated(400, seed=4, shuffled=True)))
    assert abs(within_models(model, generated(300, seed=5)) - 0.5) < 0.08


def test_the_same_data_and_seed_give_the_same_bytes() -> None:
    data = generated(80, seed=6)
    lines: list[str] = []
    assert to_bytes(train(data, progress=lines.append)) == to_bytes(train(data))
    assert lines


def test_one_model_alone_and_prompts_of_all_sorts() -> None:
    data = generated(60, seed=7)
    odd = ["", "🙂🙂🙂", "a" * 1_000_000, "\n\n\n"]
    prompts = tuple(
        Prompt(f"odd-{i}", f"odd-{i}", "made", prompt_features(text)) for i, text in enumerate(odd)
    )
    answers = [answer for answer in data.answers if answer.model == "adder"]
    answers += [Answer(prompt.id, "adder", quality=0.5, quality_kind="score") for prompt in prompts]
    model = RelevanceModel.load(train(Dataset(data.prompts + prompts, tuple(answers))))
    for prompt in (*data.prompts, *prompts):
        mean, deviation, *_ = model.quality(prompt.features, ["adder"])
        assert np.isfinite([mean, deviation]).all()


def test_kinds_of_quality_are_scales_of_their_own() -> None:
    data = generated(60, seed=8)
    wins = tuple(
        Answer(answer.prompt, answer.model, quality=0.2 * (answer.quality or 0.0), quality_kind="win")
        for answer in data.answers
    )
    labels = labels_of(Dataset(data.prompts, data.answers + wins))
    assert labels.scales == ("made/correct", "made/win")
    assert labels.quality.shape == (60, 6)
    shift = scale_shifts(labels, np.array([1.0, 0.0, 0.0, -1.0, -2.0, -2.0], dtype=np.float32))
    assert shift.tolist() == [0.0, 2.0]


def test_data_that_cannot_be_learned_from_is_refused() -> None:
    data = generated(60, seed=9)
    with pytest.raises(DatasetError, match="no answer in the data has a quality"):
        train(Dataset(data.prompts, (Answer(data.prompts[0].id, "adder", output_tokens=3),)))
    with pytest.raises(DatasetError, match="only 10 groups"):
        train(data.keep(prompt=lambda each: int(each.id.split("-")[1]) < 10))
    same = tuple(Answer(prompt.id, "adder", quality=1.0) for prompt in data.prompts)
    with pytest.raises(DatasetError, match="the same quality"):
        train(Dataset(data.prompts, same))
    one = tuple(Prompt(p.id, "one", p.source, p.features) for p in data.prompts)
    with pytest.raises(DatasetError, match="only 1 groups"):
        train(Dataset(one, data.answers))
    empty = tuple(Prompt(p.id, p.group, p.source, prompt_features("")) for p in data.prompts)
    with pytest.raises(DatasetError, match="no words in common"):
        train(Dataset(empty, data.answers))


def test_a_scale_of_a_single_prompt_is_no_obstacle() -> None:
    data = generated(60, seed=10)
    win = Answer(data.prompts[0].id, "stranger", quality=0.7, quality_kind="win")
    model = RelevanceModel.load(train(Dataset(data.prompts, (*data.answers, win))))
    assert np.isfinite(model.quality(data.prompts[1].features, ["stranger", "adder"])[0]).all()
