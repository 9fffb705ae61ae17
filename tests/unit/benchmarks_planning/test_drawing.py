"""The drawing of a plan: XML in which each GPU is drawn once, labels are there, and no text becomes markup."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from benchmarks.planning.drawing import batch_svg, plan_svg

SVG = "{http://www.w3.org/2000/svg}"


def plan(groups: list[dict[str, Any]], *, usd_per_hour: float | None = 4.0) -> dict[str, Any]:
    return {
        "objective": "attainment",
        "policy": "latency",
        "cluster": {
            "pools": [
                {"gpu": "a100-80g", "gpus": 10, "node_gpus": 8, "usd_per_hour": usd_per_hour},
                {"gpu": "l4", "gpus": 4, "node_gpus": 4, "usd_per_hour": usd_per_hour},
            ]
        },
        "plans": [
            {
                "usd_per_hour": usd_per_hour,
                "gpus": 5,
                "multiple": 1.0,
                "attainment": 0.991,
                "low": 0.98,
                "high": 1.0,
                "groups": groups,
            }
        ],
    }


def group(model: str, pool: int, gpus: list[int], tensor: int, pipeline: int, **more: Any) -> dict[str, Any]:
    gpu = ("a100-80g", "l4")[pool]
    memory = {"weights_gb_per_gpu": 8.5, "kv_cache_gb_per_gpu": 3.0}
    return {
        "models": [model],
        "weights": "fp16",
        "gpu": gpu,
        "pool": pool,
        "gpus": gpus,
        "tensor": tensor,
        "pipeline": pipeline,
        **memory,
        **more,
    }


def drawn(data: dict[str, Any]) -> Element:
    return fromstring(plan_svg(data))  # noqa: S314  (made here)


def texts(root: Element) -> list[str]:
    return ["".join(each.itertext()).strip() for each in root.iter(f"{SVG}text")]


def marked(root: Element, css: str) -> list[Element]:
    return [each for each in root.iter() if css in each.get("class", "").split()]


def test_each_gpu_is_drawn_once_and_each_group_has_its_label() -> None:
    root = drawn(plan([group("llama-3.1-8b", 0, [0, 1, 2, 3], 2, 2), group("qwen2.5-7b", 1, [2], 1, 1)]))
    pools = marked(root, "pool")
    for pool, gpus in zip(pools, (10, 4), strict=True):
        names = [words for words in texts(pool) if words.startswith("GPU ")]
        assert sorted(names) == sorted(f"GPU {gpu}" for gpu in range(gpus))
        assert len(marked(pool, "gpu")) == gpus
    assert [len(marked(pool, "unused")) for pool in pools] == [6, 3]
    assert len(marked(pools[0], "node")) == 2
    labels = [texts(each)[:2] for each in marked(root, "group")]
    assert labels == [["llama-3.1-8b", "TP 2 × PP 2"], ["qwen2.5-7b", "TP 1 × PP 1"]]
    stages = [words for words in texts(marked(root, "group")[0]) if words.startswith("stage")]
    assert stages == ["stage 1", "stage 1", "stage 2", "stage 2"]


def test_the_head_has_attainment_price_and_models() -> None:
    words = texts(drawn(plan([group("llama-3.1-8b", 0, [0], 1, 1), group("llama-3.1-8b", 0, [1], 1, 1)])))
    assert words[0] == "Best plan: 99.1% attainment"
    assert words[1] == "95% interval 98.0% to 100.0% · 4.00 USD/h · 5 of 14 GPUs · policy latency"
    assert words[2] == "llama-3.1-8b, fp16: 2 GPUs"
    unpriced = texts(drawn(plan([group("llama-3.1-8b", 0, [0], 1, 1)], usd_per_hour=None)))
    assert not any("USD" in each for each in unpriced)


def test_memory_is_a_share_of_the_cell() -> None:
    root = drawn(plan([group("llama-3.1-8b", 1, [0], 1, 1)]))
    (cell,) = (each for each in marked(root, "gpu") if marked(each, "weights"))
    frame, weights, kv = (float(each.get("height", "0")) for each in cell.iter(f"{SVG}rect"))
    memory_gb = float(re.search(r"(\d+) GB", texts(marked(root, "pool")[1])[0])[1])  # type: ignore[index]
    assert weights / frame == pytest.approx(8.5 / memory_gb, abs=0.02)
    assert kv / frame == pytest.approx(3.0 / memory_gb, abs=0.02)


def test_stages_of_unlike_gpus_have_their_layers() -> None:
    memory = {"weights_gb_per_gpu": 10.0, "kv_cache_gb_per_gpu": 1.0}
    stages = [
        {"gpu": "a100-80g", "pool": 0, "gpus": [0], "layers": 62, **memory},
        {"gpu": "l4", "pool": 1, "gpus": [0, 1], "layers": 18, **memory},
    ]
    unlike = {"models": ["llama-3.1-70b"], "weights": "fp8", "gpu": "a100-80g:62+2xl4:18", "stages": stages}
    root = drawn(plan([unlike]))
    first, second = marked(root, "group")
    assert texts(first)[:2] == ["llama-3.1-70b", "stage 1/2, TP 1"]
    assert texts(second)[:2] == ["llama-3.1-70b", "stage 2/2, TP 2"]
    assert texts(second).count("18 layers") == 2
    assert "62 layers" in texts(first)
    assert "llama-3.1-70b, fp8: 3 GPUs" in texts(root)


def test_a_group_over_two_nodes_has_its_label_in_both() -> None:
    root = drawn(plan([group("llama-3.1-70b", 0, list(range(10)), 2, 5)]))
    assert [texts(each)[0] for each in marked(root, "group")] == ["llama-3.1-70b"] * 2
    assert len(marked(root, "weights")) == 10 + 1  # and the legend's


def test_names_are_escaped_and_there_is_nothing_to_run_or_load() -> None:
    hostile = "<script>alert('1')</script>&\"]]>"
    text = plan_svg(plan([group(hostile, 0, [0, 1, 2, 3], 4, 1)]))
    root = fromstring(text)  # noqa: S314  (made here)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} == {
        "svg", "title", "desc", "style", "rect", "g", "text", "tspan",
    }  # fmt: skip
    assert not any(name.startswith("on") or "href" in name for each in root.iter() for name in each.attrib)
    assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert any(hostile in (each.text or "") for each in root.iter(f"{SVG}title"))
    assert texts(marked(root, "group")[0])[0] == hostile


def test_a_long_name_is_cut_in_the_cell_but_not_in_the_title() -> None:
    name = "a-model-with-a-very-long-name"
    (part,) = marked(drawn(plan([group(name, 0, [0], 1, 1)])), "group")
    assert texts(part)[0].endswith("…")
    assert (part.findtext(f"{SVG}title") or "").startswith(name)


def test_a_reader_hears_what_it_shows() -> None:
    root = drawn(plan([group("llama-3.1-8b", 0, [0], 1, 1)]))
    ids = {each.get("id"): each for each in root.iter() if each.get("id")}
    assert root.get("role") == "img"
    title, about = (ids[name].text or "" for name in (root.get("aria-labelledby") or "").split())
    assert "99.1% attainment" in title
    assert "llama-3.1-8b, fp16: TP 1 × PP 1, on 1 x a100-80g" in about


def test_a_batch_is_coloured_by_tensor_degree() -> None:
    wide = group("llama-3.1-8b", 0, [0, 1, 2, 3], 4, 1, prefill_s=1.5, tokens=[60_000])
    single = [group("llama-3.1-8b", 0, [gpu], 1, 1, prefill_s=1.2, tokens=[500, 400]) for gpu in (4, 5)]
    data = plan([]) | {"groups": [wide, *single], "model": "llama-3.1-8b", "prompts": 5, "tokens": 61_800}
    root = fromstring(batch_svg(data | {"makespan_s": 1.5, "bound_s": 1.4}))  # noqa: S314  (made here)
    assert texts(root)[0] == "Best groups: the batch is prefilled in 1.500 s"
    assert texts(root)[2:4] == ["TP 4: 4 GPUs", "TP 1: 2 GPUs"]
    labels = [texts(each)[:2] for each in marked(root, "group")]
    assert labels == [["1 prompt", "TP 4, 1.500 s"], *[["2 prompts", "TP 1, 1.200 s"]] * 2]
