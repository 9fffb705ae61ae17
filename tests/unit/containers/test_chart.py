"""The Helm chart: rendered by Helm, checked against the Kubernetes API's own schemas, and its fleet file by our reader."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from router.config import load, loads

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "headway"
HELM = shutil.which("helm") or str(ROOT / ".tools" / "helm")
#: Kinds of other projects, which the Kubernetes schemas do not hold.
CUSTOM = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}

MODEL = {"name": "llama-3.1-8b", "price": {"input_usd_per_mtok": 0.05, "output_usd_per_mtok": 0.25}}
SECRET = {"values": {"HEADWAY_ADMIN_KEY": "a"}}
ALONE: dict[str, Any] = {"replicas": 1, "fleet": {"models": [MODEL]}, "secret": SECRET}
SHARED: dict[str, Any] = {
    "store": {"url": "postgresql+asyncpg://headway@pg/headway"},
    "state": {"url": "redis://redis:6379/0", "passwordEnv": "HEADWAY_STATE_PASSWORD"},
    "secret": {
        "values": {"HEADWAY_ADMIN_KEY": "a", "HEADWAY_STORE_PASSWORD": "b", "HEADWAY_STATE_PASSWORD": "c"}
    },
    "fleet": {
        "auth": {"admin_key_env": "HEADWAY_ADMIN_KEY"},
        "models": [MODEL],
        "discovery": [
            {
                "kubernetes": {"selector": "app=vllm", "namespace": "engines"},
                "instance": {"kind": "vllm", "serves": {"llama-3.1-8b": "llama-3.1-8b"}, "hardware": "l4"},
            }
        ],
    },
}
TARGET = {"model": "llama-3.1-8b", "name": "vllm-llama", "minReplicas": 1, "maxReplicas": 4}
EVERYTHING: dict[str, Any] = {
    **SHARED,
    "workers": 2,
    "autoscaling": {"enabled": True, "liveRequestsPerPod": 400},
    "engineScaling": {"via": "keda", "targets": [TARGET]},
    "ingress": {"enabled": True, "className": "nginx", "tls": [{"hosts": ["a.example"], "secretName": "t"}]},
    "networkPolicy": {"enabled": True, "from": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "priorityClassName": "high",
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "podLabels": {"team": "llm"},
    "podAnnotations": {"a": "b"},
    "image": {
        "repository": "registry.example/headway",
        "digest": f"sha256:{'a' * 64}",
        "pullSecrets": [{"name": "pull"}],
    },
    "serviceAccount": {"annotations": {"a": "b"}},
}


def template(values: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values), encoding="utf-8")
    command = [HELM, "template", "prod", str(CHART), "--namespace", "llm", "--values", str(given)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def rendered(values: dict[str, Any], tmp_path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects by kind and name."""
    done = template(values, tmp_path)
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.parametrize("values", [ALONE, SHARED, EVERYTHING], ids=["alone", "shared", "everything"])
def test_what_is_rendered_is_valid_kubernetes(values: dict[str, Any], tmp_path: Path) -> None:
    for (kind, _), each in rendered(values, tmp_path).items():
        if kind not in CUSTOM:
            kubernetes_validate.validate(each, "1.33", strict=True)


def test_an_ingress_does_not_publish_the_metrics(tmp_path: Path) -> None:
    (rule,) = rendered(EVERYTHING, tmp_path)["Ingress", "prod-headway"]["spec"]["rules"]
    paths = {each["path"]: each["pathType"] for each in rule["http"]["paths"]}
    assert paths["/v1"] == "Prefix"
    assert paths["/"] == "Exact"
    assert "/metrics" not in paths


def test_the_schemas_refuse_what_kubernetes_refuses(tmp_path: Path) -> None:
    broken = rendered(SHARED, tmp_path)["Deployment", "prod-headway"]
    broken["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, "1.33", strict=True)


@pytest.mark.parametrize("values", [ALONE, SHARED, EVERYTHING], ids=["alone", "shared", "everything"])
def test_the_fleet_file_in_it_is_one_that_we_read(values: dict[str, Any], tmp_path: Path) -> None:
    text = rendered(values, tmp_path)["ConfigMap", "prod-headway"]["data"]["fleet.yaml"]
    fleet = loads(text)
    assert fleet.server.host == "0.0.0.0"
    assert fleet.server.workers == values.get("workers", 1)
    assert fleet.store.spool_directory == "/var/lib/headway"
    assert fleet.auth.required
    if values is not ALONE:
        assert fleet.state.url == SHARED["state"]["url"]
        assert fleet.state.password_env == "HEADWAY_STATE_PASSWORD"
        assert fleet.store.password_env == "HEADWAY_STORE_PASSWORD"
        assert fleet.discovery[0].kubernetes.namespace == "engines"


def test_the_example_fleet_fits_into_the_chart(tmp_path: Path) -> None:
    """Whatever an operator has in a fleet file can be given as `fleet`."""
    fleet = yaml.safe_load((ROOT / "fleets" / "example.yaml").read_text(encoding="utf-8"))
    text = rendered({"replicas": 1, "fleet": fleet, "secret": SECRET}, tmp_path)["ConfigMap", "prod-headway"][
        "data"
    ]["fleet.yaml"]
    ours = load(ROOT / "fleets" / "example.yaml").model_dump(exclude={"server", "store"})
    assert loads(text).model_dump(exclude={"server", "store"}) == ours


def test_a_fleet_may_be_open_where_it_says_so(tmp_path: Path) -> None:
    given = {**ALONE, "fleet": {"models": [MODEL], "auth": {"required": False}}}
    text = rendered(given, tmp_path)["ConfigMap", "prod-headway"]["data"]["fleet.yaml"]
    assert not loads(text).auth.required


def test_a_pod_runs_without_rights_and_drains(tmp_path: Path) -> None:
    pod = rendered(SHARED, tmp_path)["Deployment", "prod-headway"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")
    }
    assert probes == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
    pause_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    # The gateway's own drain, and its records.
    assert pod["terminationGracePeriodSeconds"] >= pause_s + 30 + 5


@pytest.mark.parametrize(
    ("pods", "kept"),
    [
        ({"replicas": 2}, True),
        ({"replicas": 1}, False),
        ({"replicas": 1, "autoscaling": {"enabled": True}}, True),
        ({"autoscaling": {"enabled": True, "minReplicas": 1}}, False),
    ],
)
def test_a_disruption_budget_never_forbids_every_drain(
    pods: dict[str, Any], kept: bool, tmp_path: Path
) -> None:
    assert (("PodDisruptionBudget", "prod-headway") in rendered(SHARED | pods, tmp_path)) is kept


def test_discovery_may_read_pods_where_they_are_and_nothing_else(tmp_path: Path) -> None:
    found = rendered(SHARED, tmp_path)
    role = found["Role", "prod-headway"]
    assert role["metadata"]["namespace"] == "engines"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    subject = found["RoleBinding", "prod-headway"]["subjects"][0]
    account = found["Deployment", "prod-headway"]["spec"]["template"]["spec"]["serviceAccountName"]
    assert (subject["name"], subject["namespace"]) == (account, "llm")
    alone = rendered(ALONE, tmp_path)
    assert ("Role", "prod-headway") not in alone
    assert not alone["Deployment", "prod-headway"]["spec"]["template"]["spec"]["automountServiceAccountToken"]


def test_whoever_scales_deployments_may_scale_these_and_mark_pods(tmp_path: Path) -> None:
    entry = SHARED["fleet"]["discovery"][0]
    pool = {"name": "p", "instance": entry["instance"], "deployment": "vllm-l4"}
    fleet = {**SHARED["fleet"], "scaling": {"actuator": "kubernetes", "pools": [pool]}}
    found = rendered({**SHARED, "fleet": fleet}, tmp_path)
    role = found["Role", "prod-headway"]
    kubernetes_validate.validate(role, "1.33", strict=True)
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"], "resourceNames": ["vllm-l4"]},
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/scale"],
            "verbs": ["patch"],
            "resourceNames": ["vllm-l4"],
        },
    ]
    watching = {**SHARED["fleet"], "scaling": {"pools": [pool]}}
    found = rendered({**SHARED, "fleet": watching}, tmp_path)
    assert found["Role", "prod-headway"]["rules"][0]["verbs"] == ["get", "list", "watch"]


@pytest.mark.parametrize("via", ["keda", "hpa"])
def test_engines_scale_by_what_headway_says(via: str, tmp_path: Path) -> None:
    found = rendered({**SHARED, "engineScaling": {"via": via, "targets": [TARGET]}}, tmp_path)
    name = "prod-headway-vllm-llama"
    if via == "keda":
        spec = found["ScaledObject", name]["spec"]
        assert spec["scaleTargetRef"]["name"] == "vllm-llama"
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 4)
        trigger = spec["triggers"][0]["metadata"]
        assert trigger["query"] == 'max(headway_desired_replicas{model="llama-3.1-8b"})'
        assert trigger["ignoreNullValues"] == "false"
    else:
        kubernetes_validate.validate(found["HorizontalPodAutoscaler", name], "1.33", strict=True)
        metric = found["HorizontalPodAutoscaler", name]["spec"]["metrics"][0]["external"]["metric"]
        assert metric["name"] == "headway_desired_replicas"
        assert metric["selector"] == {"matchLabels": {"model": "llama-3.1-8b"}}


@pytest.mark.parametrize(
    ("given", "made"),
    [({}, (1, 300)), ({"minReplicas": 0, "cooldownSeconds": 0}, (0, 0))],
    ids=["none", "zero"],
)
def test_engines_may_scale_to_zero(given: dict[str, int], made: tuple[int, int], tmp_path: Path) -> None:
    target = {"model": "llama-3.1-8b", "name": "vllm-llama", "maxReplicas": 4, **given}
    for via in ("keda", "hpa"):
        found = rendered({**SHARED, "engineScaling": {"via": via, "targets": [target]}}, tmp_path)
        if via == "keda":
            spec = found["ScaledObject", "prod-headway-vllm-llama"]["spec"]
            assert (spec["minReplicaCount"], spec["cooldownPeriod"]) == made
        else:
            spec = found["HorizontalPodAutoscaler", "prod-headway-vllm-llama"]["spec"]
            window_s = spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"]
            assert (spec["minReplicas"], window_s) == made


def test_an_image_may_be_named_by_its_digest(tmp_path: Path) -> None:
    def image(values: dict[str, Any]) -> str:
        pod = rendered(values, tmp_path)["Deployment", "prod-headway"]["spec"]["template"]["spec"]
        return str(pod["containers"][0]["image"])

    assert image(EVERYTHING).endswith(f"@sha256:{'a' * 64}")
    assert "@" not in image(SHARED)
    wrong = template({**SHARED, "image": {"repository": "headway", "digest": "latest"}}, tmp_path)
    assert wrong.returncode != 0
    assert "digest" in wrong.stderr


def test_rules_and_dashboard_are_those_of_the_repository(tmp_path: Path) -> None:
    found = rendered(EVERYTHING, tmp_path)
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    assert found["PrometheusRule", "prod-headway"]["spec"] == rules
    dashboard = found["ConfigMap", "prod-headway-dashboard"]["data"]["headway.json"]
    seen = dashboard.strip()
    assert seen == (ROOT / "deploy/grafana/dashboards/headway.json").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"fleet": {"models": [MODEL]}}, "several gateways need a state to share"),
        ({"fleet": {"models": [MODEL]}, "state": SHARED["state"]}, "several gateways need one store"),
        ({"fleet": {"models": []}, "replicas": 1}, "minItems"),
        ({**ALONE, "replica": 2}, "replica"),
        ({**ALONE, "secret": {}}, "secrets are needed"),
        ({**ALONE, "secret": {"values": {"OTHER": "x"}}}, "HEADWAY_ADMIN_KEY is missing or empty"),
        ({**ALONE, "secret": {"values": {"HEADWAY_ADMIN_KEY": ""}}}, "HEADWAY_ADMIN_KEY is missing or empty"),
        ({**ALONE, "secret": {"values": {"HEADWAY_ADMIN_KEY": "ChangeMe"}}}, "one that anybody would try"),
        ({**SHARED, "secret": SECRET}, "HEADWAY_STORE_PASSWORD is missing or empty"),
        ({**ALONE, "drain": {"graceSeconds": 10}}, "graceSeconds"),
    ],
)
def test_wrong_values_are_told(values: dict[str, Any], told: str, tmp_path: Path) -> None:
    done = template(values, tmp_path)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_chart_lints(tmp_path: Path) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(EVERYTHING), encoding="utf-8")
    done = subprocess.run(
        [HELM, "lint", "--strict", str(CHART), "--values", str(given)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
