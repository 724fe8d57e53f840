"""The manifests against Kubernetes' schemas, its restricted standard, and our code."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.inference.metrics import InferenceMetrics
from services.inference.settings import InferenceSettings
from services.tokenizer.settings import TokenizerSettings
from shared.http.probes import HEALTH_PATHS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
LISTED = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
SETTINGS = {"inference": InferenceSettings, "tokenizer": TokenizerSettings}
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


def documents() -> Iterator[dict[str, Any]]:
    for name in LISTED:
        yield from yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in documents() if one["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """The pods' specifications by the name of what makes them."""
    makers = of_kind("Deployment") | of_kind("Job")
    return {name: maker["spec"]["template"]["spec"] for name, maker in makers.items()}


def test_every_manifest_is_applied() -> None:
    assert {*LISTED, "kustomization.yaml"} == {path.name for path in FOLDER.glob("*.yaml")}
    assert set(of_kind("Deployment")) == set(of_kind("Service")) == set(SETTINGS)


@pytest.mark.observe
@pytest.mark.parametrize("version", ["1.30", "1.34", "1.37"])
def test_manifests_have_the_form_that_kubernetes_publishes(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="needs the extra observe")
    for document in documents():
        validator.validate(document, version, strict=True)
    broken = of_kind("Deployment")["inference"]
    broken["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, version, strict=True)


@pytest.mark.parametrize("name", pods())
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted, which the namespace enforces."""
    labels = of_kind("Namespace")["ownlm"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = pods()[name]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001 == user_of_the_images()
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(volume.keys() <= {"name", "persistentVolumeClaim", "emptyDir"} for volume in pod["volumes"])
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume)
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "a service named ownlm would set OWNLM_PORT"
    assert pod["shareProcessNamespace"], "instead of an init process"


def user_of_the_images() -> int:
    users = {
        found
        for path in ROOT.glob("*/**/*Dockerfile")
        if ".venv" not in path.parts
        for found in re.findall(r"useradd --uid (\d+)", path.read_text(encoding="utf-8"))
    }
    assert len(users) == 1
    return int(users.pop())


@pytest.mark.parametrize("name", SETTINGS)
def test_ports_probes_and_variables_are_those_of_the_service(name: str) -> None:
    deployment, service = of_kind("Deployment")[name], of_kind("Service")[name]
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    fields = SETTINGS[name].model_fields
    [port] = container["ports"]
    assert port == {"name": "http", "containerPort": fields["port"].default}
    [published] = service["spec"]["ports"]
    assert (published["port"], published["targetPort"]) == (fields["port"].default, "http")
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(fields["port"].default)
    labels = template["metadata"]["labels"]
    for selector in (service["spec"]["selector"], deployment["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["path"] for probe in probes.values()} <= HEALTH_PATHS
    assert all(probe["port"] == "http" for probe in probes.values())
    assert probes["readiness"]["path"] == "/readyz"
    assert probes["liveness"]["path"] == "/livez", "restarts must not follow from a model that loads"
    set_here = environment(container).keys()
    offered = set(re.findall(r"\bOWNLM_\w+", (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
    known = {f"OWNLM_{field.upper()}" for field in fields}
    assert "OWNLM_MODEL_DIR" in set_here
    assert offered - known <= {"OWNLM_PORT"}
    timeout = environment(container).get("OWNLM_SHUTDOWN_TIMEOUT", fields["shutdown_timeout"].default)
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"] + float(timeout)
    assert template["spec"]["terminationGracePeriodSeconds"] >= waits + 5
    assert container["image"] == COMPOSE[name]["image"]


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container["env"]}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_service_starts_when_its_model_is_there(name: str, tmp_path: Path) -> None:
    """The job trains for minutes; a pod without a model would end, and be restarted at ever longer intervals."""
    [waiting] = pods()[name]["initContainers"]
    [container] = pods()[name]["containers"]
    variable = "OWNLM_MODEL_DIR"
    assert environment(waiting) == {variable: environment(container)[variable]}
    assert waiting["image"] == container["image"], "nothing else to pull"
    assert set(map(str, waiting["volumeMounts"])) <= set(map(str, container["volumeMounts"]))
    program, flag, script = waiting["command"]
    command = [program, flag, script.replace("sleep 5", "sleep 0.01")]
    model = tmp_path / "model"
    with subprocess.Popen(command, env=os.environ | {variable: str(model)}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"waiting for {model}\n".encode()
        assert process.poll() is None
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "config.json").touch()
        (tmp_path / "work").rename(model)  # as `make_demo` does
        process.stdout.read()
        assert process.wait() == 0


def test_the_demo_is_trained_where_the_services_look_for_it() -> None:
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods().values()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == set(of_kind("PersistentVolumeClaim"))
    dockerfile = (ROOT / "trainer" / "Dockerfile").read_text(encoding="utf-8")
    assert '"--output", "/models/demo"' in dockerfile
    assert pods()["train-demo"]["containers"][0]["image"] == COMPOSE["train"]["image"]
    for name in SETTINGS:
        [container] = pods()[name]["containers"]
        assert {"name": "OWNLM_MODEL_DIR", "value": "/models/demo"} in container["env"]
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]


def test_the_autoscaler_follows_a_metric_that_the_adapter_makes_of_ours() -> None:
    autoscaler = of_kind("HorizontalPodAutoscaler")["inference"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] in of_kind("Deployment")
    assert "replicas" not in of_kind("Deployment")["inference"]["spec"], "applied again, it would undo the autoscaler's"
    [metric] = autoscaler["metrics"]
    name = metric["pods"]["metric"]["name"]
    [rule] = yaml.safe_load((FOLDER / "prometheus-adapter.yml").read_text(encoding="utf-8"))["rules"]["custom"]
    series = rule["seriesQuery"].partition("{")[0]
    assert re.sub(rule["name"]["matches"], rule["name"]["as"], series) == name
    # By what waits alone, a replica that has emptied the queue would be taken away again.
    asked_for = set(re.findall(r"\bownlm_\w+", rule["metricsQuery"]))
    assert asked_for == {series, "ownlm_running_rows", "ownlm_waiting_rows"}
    exported = InferenceMetrics(lambda: None).render().decode()
    assert all(f"# TYPE {one} gauge" in exported for one in asked_for)
    target = int(metric["pods"]["target"]["averageValue"])
    assert 0 < target < InferenceSettings.model_fields["max_batch"].default, "what runs is never more"


def test_nothing_is_reached_that_no_policy_names() -> None:
    policies = of_kind("NetworkPolicy")
    assert policies["nothing"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    services = policies["services"]["spec"]
    [expression] = services["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == set(SETTINGS)
    assert [rule["ports"] for rule in services["ingress"]] == [[{"port": "http"}]]
    assert "egress" not in services
