"""Test the Helm chart: Helm's own library renders it, and Kubernetes' schemas and the project's rules judge
it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import cachesvc
from cachesvc.settings import Settings

from .charts import CHART, ROOT, helm, invalid, of_kind, pods, render, unsafe, unselected, values_of
from .words import unknown_words

VALUES = ("embedded", "production", "everything")
BY_THE_CHART = {
    *("data", "host", "port", "database", "redis", "first_token", "online_key", "gc_seconds"),
    "oidc_client_secret",
    # The chart installs no mirror, which is one process with its index in a folder.
    *("upstream_url", "upstream_root", "upstream_token", "upstream_token_file", "upstream_seconds"),
    "upstream_offline_seconds",
    *("bucket", "bucket_prefix", "bucket_endpoint", "bucket_public_endpoint", "tls_certificate", "tls_key"),
}
"""Settings that other values, the image or the chart itself decide."""


def serious(chart: Path, values: dict[str, Any]) -> list[str]:
    report = helm().lint(chart, values, strict=True)
    return [*report["errors"], *(row["error"] for row in report["messages"] if row["severity"] > 1)]


@pytest.mark.parametrize("name", [*VALUES, "default"])
def test_the_chart_renders_to_manifests_that_kubernetes_and_the_rules_accept(name: str) -> None:
    values = {} if name == "default" else values_of(name)
    assert serious(CHART, values) == []
    manifests, notes = render(values)
    assert [problem for manifest in manifests for problem in invalid(manifest)] == []
    assert unsafe(manifests) == []
    assert unselected(manifests) == []
    assert unknown_words(notes, code=True) == []
    for name, template in pods(manifests):
        # A service of the name cachesvc-server beside the release would set CACHESVC_SERVER_PORT.
        assert template["spec"]["enableServiceLinks"] is False, name
        for container in template["spec"]["containers"]:
            assert unknown_words("cachesvc " + " ".join(container["args"]), code=True) == [], name
            variables = " ".join(variable["name"] for variable in container["env"])
            assert unknown_words(variables) == [], name


def test_the_production_values_have_what_an_operator_needs() -> None:
    manifests, _ = render(values_of("production"))
    deployment, job = of_kind(manifests, "Deployment")["spec"], of_kind(manifests, "Job")
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    spec = deployment["template"]["spec"]
    [container] = spec["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTP"}
    assert len(spec["topologySpreadConstraints"]) == 2
    assert {volume["name"] for volume in spec["volumes"]} == {"tmp"}  # A replica keeps no data.
    variables = {row["name"]: row.get("value", row.get("valueFrom")) for row in container["env"]}
    assert variables["CACHESVC_SERVER_GC_SECONDS"] == "0"
    assert variables["CACHESVC_SERVER_PORT"] == "8750"
    assert "value" not in variables["CACHESVC_SERVER_DATABASE"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    [migrate] = job["spec"]["template"]["spec"]["containers"]
    assert [row["name"] for row in migrate["env"]] == ["CACHESVC_SERVER_DATABASE"]
    # The hook runs before every other object of the chart exists.
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]
    assert of_kind(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert of_kind(manifests, "CronJob")["spec"]["concurrencyPolicy"] == "Forbid"
    assert not [manifest for manifest in manifests if manifest["kind"] in ("Secret", "PersistentVolumeClaim")]


def test_the_embedded_values_make_one_replica_with_a_persistent_volume() -> None:
    manifests, notes = render(values_of("embedded"))
    kinds = {manifest["kind"] for manifest in manifests}
    assert not kinds & {"Job", "CronJob", "PodDisruptionBudget", "Ingress", "ServiceMonitor"}
    deployment = of_kind(manifests, "Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    claim = of_kind(manifests, "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert claim["spec"]["storageClassName"] == "fast"
    assert "signing.key" in notes
    names = {row["name"] for row in deployment["template"]["spec"]["containers"][0]["env"]}
    assert names == {"CACHESVC_SERVER_LOG", "CACHESVC_SERVER_PORT"}


def test_every_value_of_the_schema_is_used() -> None:
    manifests, notes = render(values_of("everything"))
    deployment = of_kind(manifests, "Deployment")["spec"]["template"]["spec"]
    variables = {row["name"]: row.get("value") for row in deployment["containers"][0]["env"]}
    assert variables["CACHESVC_SERVER_MAX_PACK_BYTES"] == "17179869184"  # Helm's numbers are floats.
    assert variables["CACHESVC_SERVER_TLS_KEY"] == "/tls/tls.key"
    assert variables["CACHESVC_SERVER_OIDC_SESSION_SECONDS"] == "7200"
    roles = json.loads(variables["CACHESVC_SERVER_OIDC_ROLES"])
    assert roles == {"cache-admins": "admin in *", "ml": ["read in team", "read in lab"]}
    assert variables["CACHESVC_SERVER_OIDC_CLIENT_SECRET"] is None  # It is in a secret of the cluster.
    assert variables["AWS_CA_BUNDLE"] == "/ca/ca.crt"
    assert "AWS_ACCESS_KEY_ID" not in variables  # A role of the service account.
    assert deployment["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert deployment["terminationGracePeriodSeconds"] == 50
    policy = of_kind(manifests, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 5432, 6379}
    assert of_kind(manifests, "ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"
    paths = of_kind(manifests, "Ingress")["spec"]["rules"][0]["http"]["paths"]
    assert [path["path"] for path in paths] == ["/v1", "/ui"]
    assert "https://cachesvc.example.com" in notes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 2}, ["replicas: 2", "SQLite"]),
        ({"bucket": {"name": "x"}}, ["database.existingSecret is not"]),
        ({"database": {"existingSecret": "x"}}, ["bucket.name is not"]),
        (
            {"database": {"existingSecret": "x"}, "bucket": {"name": "b"}},
            ["firstToken", "kubectl create secret"],
        ),
        ({"ingress": {"enabled": True}}, ["ingress.host"]),
        ({"replicas": 0}, ["replicas"]),
        ({"replicaCount": 2}, ["replicaCount"]),
        ({"settings": {"prot": 1}}, ["prot"]),
        ({"settings": {"database": "postgresql://me:password@db/x"}}, ["database"]),
    ],
)
def test_impossible_values_are_refused_in_one_sentence(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(helm().HelmError) as error:
        render(values)
    for word in words:
        assert word in str(error.value)


def test_every_setting_has_one_place() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]["settings"]["properties"]) == set(Settings.model_fields) - BY_THE_CHART
    assert set(Settings.model_fields) >= BY_THE_CHART


def test_the_version_of_the_chart_is_the_programs() -> None:
    with helm().Chart.load(CHART) as chart:
        assert Version(chart.metadata["appVersion"]) == Version(cachesvc.__version__)
        assert chart.metadata["version"] == cachesvc.__version__


def test_the_images_of_every_example_have_the_programs_version() -> None:
    places = (ROOT / "deploy", ROOT / "docs" / "recipes")
    texts = [path.read_text() for place in places for path in place.rglob("*") if path.is_file()]
    tags = re.findall(r"\bcachesvc(?:-client)?(?::|, tag: )(\d+\.\d+\.\d+)\b", "\n".join(texts))
    assert len(tags) > 6 and set(tags) == {cachesvc.__version__}


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("templates/_helpers.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "unsafe"),
        ("templates/_helpers.tpl", "runAsNonRoot: true", "runAsNonRoot: false", "unsafe"),
        ("templates/cronjob-gc.yaml", "automountServiceAccountToken: false", "", "unsafe"),
        ("templates/deployment.yaml", "name: tmp, mountPath", "name: temp, mountPath", "unsafe"),
        ("templates/job-migrate.yaml", "backoffLimit", "backofLimit", "invalid"),
        ("templates/poddisruptionbudget.yaml", "policy/v1", "policy/v1beta1", "invalid"),
        ("templates/service.yaml", "component: registry", "component: server", "unselected"),
        ("templates/networkpolicy.yaml", 'include "cachesvc.selector" .', 'print "a: b"', "unselected"),
        ("templates/job-migrate.yaml", "--apply", "--aply", "words"),
        ("templates/_helpers.tpl", "CACHESVC_SERVER_REDIS", "CACHESVC_SERVER_REDDIS", "words"),
        ("templates/NOTES.txt", "cachesvc admin signers", "cachesvc admin signer", "words"),
        ("values.yaml", "replicas: null", "replicas: three", "lint"),
        ("templates/ingress.yaml", "{{- end }}", "", "lint"),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    """Without this test, a check above that looks at nothing would pass."""
    chart = tmp_path / "cachesvc"
    shutil.copytree(CHART, chart)
    text = (chart / file).read_text()
    assert old in text
    (chart / file).write_text(text.replace(old, new))
    values = values_of("everything")
    if message == "lint":
        values.pop("replicas")
        assert serious(chart, values)
        return
    manifests, notes = render(values, chart)
    words = unknown_words(notes, code=True)
    for _, template in pods(manifests):
        for container in template["spec"]["containers"]:
            words += unknown_words("cachesvc " + " ".join(container["args"]), code=True)
            words += unknown_words(" ".join(variable["name"] for variable in container["env"]))
    messages = {
        "unsafe": unsafe(manifests),
        "unselected": unselected(manifests),
        "invalid": [problem for manifest in manifests for problem in invalid(manifest)],
        "words": words,
    }
    assert messages[message], messages
