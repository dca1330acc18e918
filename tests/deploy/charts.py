"""Render the chart, and check what every workload must hold, be it the chart's or an example's."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "cachesvc"
KUBERNETES = ("1.27", "1.37")
"""The oldest version of Kubernetes that Chart.yaml allows, and the newest that is known."""
IMAGE_VOLUMES = ("1.33", KUBERNETES[1])
"""The same for what mounts an image as a volume."""
NO_SCHEMA = {"ServiceMonitor"}
"""Kinds that an operator defines and that are no part of Kubernetes."""

Manifest = dict[str, Any]
_SELECTORS = {
    "Service": ("selector",),
    "Deployment": ("selector", "matchLabels"),
    "PodDisruptionBudget": ("selector", "matchLabels"),
    "NetworkPolicy": ("podSelector", "matchLabels"),
}


def helm() -> Any:
    """Load Helm's own library, which needs no cluster."""
    if platform.machine() != "x86_64":
        pytest.skip("helm-python-sdk has no wheel for this machine")
    return importlib.import_module("helm_python")


def values_of(name: str) -> dict[str, Any]:
    """Return the values of ``ci/<name>-values.yaml``."""
    loaded: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return loaded


def render(values: Mapping[str, Any], chart: Path = CHART) -> tuple[list[Manifest], str]:
    """Render the chart. Return its manifests and its notes."""
    with helm().Chart.load(chart) as loaded:
        files = loaded.render(dict(values), name="team", namespace="ml")
    notes = "".join(text for path, text in files.items() if path.endswith("NOTES.txt"))
    texts = (text for path, text in files.items() if path.endswith(".yaml"))
    return [manifest for text in texts for manifest in yaml.safe_load_all(text) if manifest], notes


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    [manifest_of_kind] = [manifest for manifest in manifests if manifest["kind"] == kind]
    return manifest_of_kind


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield ``kind/name`` and the template of everything that makes pods."""
    for manifest in manifests:
        spec = manifest.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template:
            yield f"{manifest['kind']}/{manifest['metadata']['name']}", template


def invalid(manifest: Manifest) -> list[str]:
    """Return the faults that Kubernetes' own schemas find; unknown fields count as faults."""
    validate = importlib.import_module("kubernetes_validate")
    problems = []
    for version in IMAGE_VOLUMES if _mounts_an_image(manifest) else KUBERNETES:
        try:
            validate.validate(manifest, version, strict=True)
        except validate.SchemaNotFoundError:
            if manifest["kind"] not in NO_SCHEMA:
                problems.append(
                    f"{version}: {manifest['kind']} {manifest['apiVersion']}: there is no such kind"
                )
        except validate.ValidationError as error:
            problems.append(
                f"{version}: {manifest['kind']} {'.'.join(map(str, error.path))}: {error.message}"
            )
    return problems


def _mounts_an_image(manifest: Manifest) -> bool:
    return any(
        "image" in volume
        for _, template in pods([manifest])
        for volume in template["spec"].get("volumes", [])
    )


def unsafe(manifests: list[Manifest]) -> list[str]:
    """Return what no pod of cachesvc may be: root, writable, unbounded, or with volumes that do not belong
    together."""
    problems: list[str] = []
    for name, template in pods(manifests):
        spec = template["spec"]
        security = spec.get("securityContext", {})
        if not (security.get("runAsNonRoot") and security.get("runAsUser") == 10001):
            problems.append(f"{name}: may run as root")
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            problems.append(f"{name}: no seccomp profile")
        if spec.get("automountServiceAccountToken") is not False:
            problems.append(f"{name}: holds a token of the cluster")
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        mounted: set[str] = set()
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            problems += [f"{name}/{container['name']}: {what}" for what in _unsafe_container(container)]
            mounted |= {mount["name"] for mount in container.get("volumeMounts", [])}
        if volumes != mounted:
            problems.append(f"{name}: volumes {sorted(volumes)}, mounted {sorted(mounted)}")
    return problems


def _unsafe_container(container: Manifest) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("readOnlyRootFilesystem") is not True:
        yield "its root is writable"
    if security.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield "has capabilities"
    resources = container.get("resources", {})
    if "memory" not in resources.get("limits", {}) or "memory" not in resources.get("requests", {}):
        yield "memory is not bounded"
    names = [variable["name"] for variable in container.get("env", [])]
    if len(names) != len(set(names)):
        yield f"a variable is set twice: {sorted({name for name in names if names.count(name) > 1})}"


def unselected(manifests: list[Manifest]) -> list[str]:
    """Return the selectors that select nothing here, or objects that they should not select."""
    labels = {name: template["metadata"]["labels"] for name, template in pods(manifests)}
    problems = []
    for manifest in manifests:
        kind, spec = manifest["kind"], manifest.get("spec", {})
        if kind not in _SELECTORS:
            continue
        selector: Any = spec
        for step in _SELECTORS[kind]:
            selector = selector[step]
        matches = {name for name, values in labels.items() if selector.items() <= values.items()}
        every = kind == "NetworkPolicy"
        expected = {name for name in labels if every or name.startswith("Deployment/")}
        if matches != expected:
            problems.append(f"{kind}: selects {sorted(matches)}, and should {sorted(expected)}")
    return problems
