"""The examples work: their page is followed over emulated engines, and their manifests fit together."""

from __future__ import annotations

import shutil
from pathlib import Path

import kubernetes_validate
import yaml

from router.config import loads
from tests.integration.docs.reader import Reader
from tests.unit.containers.test_chart import rendered
from tests.unit.docs.pages import ROOT, blocks_of, links

EXAMPLES = ROOT / "examples"
PAGE = EXAMPLES / "README.md"


def test_each_example_is_run_by_its_page_and_works(tmp_path: Path) -> None:
    scripts = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    ran = "".join(block.text for block in blocks_of(PAGE) if "run" in block.info)
    assert {name for name in scripts if f"examples/{name}\n" in ran} == scripts
    with Reader(tmp_path) as reader:
        shutil.copytree(EXAMPLES, reader.directory / "examples")
        for block in blocks_of(PAGE):
            reader.follow(block)


def test_the_page_links_to_what_is_there() -> None:
    for link in links(PAGE):
        assert (EXAMPLES / link).exists(), link


def test_kubernetes_takes_the_engines_and_the_gateway_finds_them(tmp_path: Path) -> None:
    deployment = yaml.safe_load((EXAMPLES / "kubernetes" / "vllm.yaml").read_text(encoding="utf-8"))
    kubernetes_validate.validate(deployment, "1.33", strict=True)
    values = yaml.safe_load((EXAMPLES / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    known = yaml.safe_load((ROOT / "deploy/helm/headway/values.yaml").read_text(encoding="utf-8"))
    assert values.keys() <= known.keys()
    objects = rendered(values, tmp_path)
    for each in objects.values():
        kubernetes_validate.validate(each, "1.33", strict=True)
    fleet = loads(objects["ConfigMap", "prod-headway"]["data"]["fleet.yaml"])
    (found,) = fleet.discovery
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    wanted = dict(pair.split("=") for pair in found.kubernetes.selector.split(","))
    assert wanted.items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert found.kubernetes.port in {port["containerPort"] for port in container["ports"]}
    served = values["fleet"]["discovery"][0]["instance"]["serves"]
    assert served.keys() == {model.name for model in fleet.models}
    assert set(served.values()) <= set(container["args"])
