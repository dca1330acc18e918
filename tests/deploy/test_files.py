"""Test the compose file, example manifests, workflow and Dockerfiles: they are linted offline, and every word
in them exists."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachesvc.settings import Settings
from cachesvc.warm.report.merged import MergedReport

from .charts import ROOT, invalid, pods, unsafe
from .failure_modes import SHOWN_BY
from .words import unknown_words

DEPLOY = ROOT / "deploy"
EXAMPLES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
TEXTS = [
    *(path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and "templates" not in path.parts),
    ROOT / "Dockerfile",
    ROOT / "docs" / "operate.md",
]


def program(name: str, *arguments: object, cwd: Path = ROOT) -> list[str]:
    """Return the messages of a linter; none if the file passes."""
    executable = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert executable, f"{name} is not installed: make venv"
    result = subprocess.run(
        [executable, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    return (
        [] if result.returncode == 0 else [*result.stdout.splitlines(), *result.stderr.splitlines(), "failed"]
    )


@functools.cache
def schema_check(name: str) -> Callable[[Path], list[str]]:
    return lambda path: program("check-jsonschema", "--builtin-schema", f"vendor.{name}", path)


def yamllint(path: Path) -> list[str]:
    return program("yamllint", "--strict", "-c", ROOT / ".yamllint.yaml", path)


def hadolint(path: Path) -> list[str]:
    return program("hadolint", path)


def words(path: Path) -> list[str]:
    return unknown_words(path.read_text())


def manifests(path: Path) -> list[str]:
    loaded = [manifest for manifest in yaml.safe_load_all(path.read_text()) if manifest]
    return [*unsafe(loaded), *(problem for manifest in loaded for problem in invalid(manifest))]


def kustomized(path: Path) -> list[str]:
    """Check that every example is in the kustomization, and nothing else."""
    named = set(yaml.safe_load(path.read_text())["resources"])
    there = {other.name for other in path.parent.glob("*.yaml")} - {path.name}
    return sorted(named ^ there)


def one_writer(path: Path) -> list[str]:
    """Check that services read the folder of the node and do not write it, and that the agent alone does."""
    problems = []
    for name, template in pods(list(yaml.safe_load_all(path.read_text()))):
        spec = template["spec"]
        shared = {volume["name"] for volume in spec["volumes"] if "hostPath" in volume}
        for container in spec["containers"]:
            writes = [
                mount["name"]
                for mount in container["volumeMounts"]
                if mount["name"] in shared and not mount.get("readOnly")
            ]
            if bool(writes) != name.startswith("DaemonSet/"):
                problems.append(f"{name}: writes {writes}")
    return problems


ONLY_MAIN = "github.event_name == 'push'"
FROM_HERE = "github.event.pull_request.head.repo.full_name == github.repository"


def workflow(path: Path) -> list[str]:
    """Check that no job of a pull request can write to the trunk, that a fork's job gets neither a secret nor
    a machine of ours, that no key is stored, and that what may write runs where no code of a model ran."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    problems = []
    if loaded["permissions"] != {"contents": "read"}:
        problems.append("the workflow's own token may do more than read")
    if "pull_request_target" in loaded[True]:
        problems.append("pull_request_target runs a fork's code with secrets")
    for name, job in loaded["jobs"].items():
        if "secrets." in str(job):
            problems.append(f"{name}: a long-lived key or token")
        if "id-token" in job.get("permissions", {}) and "environment" not in job:
            problems.append(f"{name}: an identity that no environment guards")
        ours, condition = "self-hosted" in job["runs-on"], str(job.get("if"))
        if ours and condition != ONLY_MAIN and FROM_HERE not in condition:
            problems.append(f"{name}: a fork's code runs on our machine")
        if ours and (condition == ONLY_MAIN) != ("trusted" in job["runs-on"]):
            problems.append(f"{name}: the trunk's job shares its machine with a pull request's")
        if ours and "pull-requests" in job.get("permissions", {}):
            problems.append(f"{name}: the models' code runs beside a token that may write")
        if any("comment" in step["with"] and "merge" not in step["with"] for step in action_steps(job)):
            problems.append(f"{name}: a comment of a job in which the models' code ran")
        if any("pip" in step.get("run", "") and "-I" not in step["run"] for step in job["steps"]):
            problems.append(f"{name}: Python reads what an earlier job left")
        if "timeout-minutes" not in job:
            problems.append(f"{name}: may run forever")
        for step in job["steps"]:
            if "checkout" in step.get("uses", "") and step.get("with") != {"persist-credentials": False}:
                problems.append(f"{name}: the models' code finds GitHub's token in the checkout")
        group = job.get("concurrency", {})
        if group and not group.get("cancel-in-progress") and group.get("queue") != "max":
            problems.append(f"{name}: a job that waits is dropped when another one comes")
        runners = [gpu for other in loaded["jobs"].values() for gpu in gpus(other)]
        for step in action_steps(job):
            if "merge" in step["with"] and set(step["with"].get("runners", "").split()) != set(runners):
                problems.append(f"{name}: a runner may fail to report, and nobody sees it")
    return problems


def gpus(job: Mapping[str, Any]) -> list[str]:
    return list(job.get("strategy", {}).get("matrix", {}).get("gpu", []))


def action_steps(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [step for step in job["steps"] if "deploy/github/action@" in step.get("uses", "")]


def inputs(path: Path) -> list[str]:
    """Check that a workflow gives the action inputs that it has."""
    known = yaml.safe_load(ACTION.read_text())["inputs"]
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [
        f"{name}: no input {word}"
        for name, job in jobs.items()
        for step in action_steps(job)
        for word in step["with"]
        if word not in known
    ]


def composite(path: Path) -> list[str]:
    """Check that no input is a part of a script, that each script has the variables and each expression the
    input or output that it names, and that no shell waits for `warm` with the key."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    steps = {step["id"]: step for step in loaded["runs"]["steps"]}
    problems = [f"{name}: an expression in a script" for name, step in steps.items() if "${{" in step["run"]]
    for name, step in steps.items():
        used = set(re.findall(r"\bINPUT_\w+", step["run"]))
        problems += [f"{name}: {word}" for word in sorted(used ^ (set(step["env"]) - {"GITHUB_TOKEN"}))]
    text = path.read_text()
    problems += [
        f"no input {word}" for word in re.findall(r"\binputs\.([\w-]+)", text) if word not in loaded["inputs"]
    ]
    outputs = {"report": OUTPUTS, "warm": {"report"}}
    problems += [
        f"no output {word} of {step}"
        for step, word in re.findall(r"steps\.([\w-]+)\.outputs\.([\w-]+)", text)
        if word not in outputs[step]
    ]
    lines = [line for step in steps.values() for line in step["run"].splitlines()]
    if any("-m " in line and " -I -m " not in line for line in lines):
        problems.append("Python reads what an earlier job left among the user's packages")
    if "inputs.merge" not in steps["report"]["env"]["GITHUB_TOKEN"]:
        problems.append("report: a step after the models' code has GitHub's token")
    last = steps["warm"]["run"].strip().splitlines()[-1]
    if not last.startswith("exec ") or "cachesvc warm " not in last:
        problems.append("warm: a shell that has the key waits for it")
    return problems


OUTPUTS = set(MergedReport((), ("absent",)).outputs())
"""Names of the outputs that `warm-report --github` writes."""


def restricted(path: Path) -> list[str]:
    """Check the services of the compose file: they have no unnamed capability, and those of cachesvc are
    read-only and not root."""
    loaded = yaml.safe_load(path.read_text())
    problems = []
    for name, service in loaded["services"].items():
        ours = "build" in service
        if name != "postgres" and (service.get("cap_drop") != ["ALL"] or not service.get("read_only")):
            problems.append(f"{name}: not restricted")
        if ours and service.get("user") != "10001:10001":
            problems.append(f"{name}: runs as root")
        long = not any(
            "completed" in other["depends_on"][name]["condition"]
            for other in loaded["services"].values()
            if name in other.get("depends_on", {})
        )
        if long and service.get("restart") != "unless-stopped":
            problems.append(f"{name}: does not come back")
        if long and not ours and name != "proxy" and "healthcheck" not in service:
            problems.append(f"{name}: nobody knows whether it is well")
        if ":" not in service["image"].rpartition("}")[2] and "${" not in service["image"]:
            problems.append(f"{name}: any version")
    return problems


TOOLS = {"max_connections", "published_by"}
"""Settings of other programs, and a field of an event."""
COMPOSE = DEPLOY / "compose" / "compose.yaml"
WARM = DEPLOY / "github" / "warm.yml"
MATRIX = DEPLOY / "github" / "matrix.yml"
ACTION = DEPLOY / "github" / "action" / "action.yml"
GITLAB = DEPLOY / "gitlab" / "warm.yml"
INIT = DEPLOY / "kubernetes" / "pull-in-init-container.yaml"
AGENT = DEPLOY / "kubernetes" / "node-agent.yaml"
GATE = DEPLOY / "kubernetes" / "gate-before-rollout.yaml"
VOLUME = DEPLOY / "kubernetes" / "bundles-in-image-volume.yaml"
BUNDLES = DEPLOY / "kubernetes" / "Dockerfile.bundles"
KUSTOMIZATION = DEPLOY / "kubernetes" / "kustomization.yaml"
CHECKS: list[tuple[Callable[[Path], list[str]], Path, str, str]] = [
    # (check, file, text to replace, replacement that the check must find)
    (schema_check("compose-spec"), COMPOSE, "    healthcheck:", "    healtcheck:"),
    (schema_check("compose-spec"), COMPOSE, "condition: service_healthy", "condition: healthy"),
    (restricted, COMPOSE, "cap_drop: [ALL]", "cap_drop: []"),
    (restricted, COMPOSE, "    restart: unless-stopped\n    deploy:", "    deploy:"),
    (schema_check("github-workflows"), WARM, "runs-on:", "run-on:"),
    (workflow, WARM, "${{ steps.login.outputs.token }}", "${{ secrets.CACHESVC_READ_TOKEN }}"),
    (workflow, WARM, "  pull_request:\n", "  pull_request_target:\n"),
    (workflow, WARM, "    environment: cachesvc-lane\n", ""),
    (workflow, WARM, f"      {FROM_HERE}\n    runs-on", "      true\n    runs-on"),
    (workflow, WARM, "gpu, trusted]", "gpu, pull-requests]"),
    (workflow, WARM, "gpu, pull-requests]", "gpu, trusted]"),
    (workflow, WARM, "python -I -m pip", "python -m pip"),
    (workflow, WARM, "          report: reports/check.json\n", '          comment: "true"\n'),
    (workflow, WARM, "      contents: read\n      id-token", "      pull-requests: write\n      id-token"),
    (workflow, WARM, "${{ steps.signer.outputs.token }}", "${{ secrets.CACHESVC_SIGNING_KEY }}"),
    (workflow, WARM, "persist-credentials: false", "persist-credentials: true"),
    (schema_check("github-workflows"), MATRIX, "queue: max", "queue: all"),
    (workflow, MATRIX, "steps.signer.outputs.token", "secrets.CACHESVC_SIGNING_KEY"),
    (workflow, MATRIX, "      queue: max\n", ""),
    (workflow, MATRIX, "runners: h200 l4", "runners: h200"),
    (inputs, WARM, "oidc: github", "odic: github"),
    (inputs, MATRIX, "merge: reports", "merged: reports"),
    (schema_check("github-actions"), ACTION, "    - name: Warm", "    - nome: Warm"),
    (composite, ACTION, '-- "$INPUT_SPEC"', '-- "${{ inputs.spec }}"'),
    (composite, ACTION, "INPUT_OIDC: ${{ inputs.oidc }}", "INPUT_OIDC: ${{ inputs.odic }}"),
    (composite, ACTION, "        INPUT_KEY: ${{ inputs.working-directory }}/${{ inputs.spec }}\n", ""),
    (composite, ACTION, "steps.report.outputs.revision }}", "steps.warm.outputs.revision }}"),
    (composite, ACTION, '        exec "$INPUT_PYTHON" -I', '        "$INPUT_PYTHON" -I'),
    (composite, ACTION, '"$INPUT_PYTHON" -I -m pip', '"$INPUT_PYTHON" -m pip'),
    (composite, ACTION, "inputs.merge != '' && inputs.github-token", "inputs.github-token"),
    (words, ACTION, "cachesvc warm-report", "cachesvc report-warm"),
    (schema_check("gitlab-ci"), GITLAB, "  script:\n    - exec", "  scripts:\n    - exec"),
    (words, GITLAB, "--code-quality", "--codequality"),
    (words, GITLAB, "admin publishers add", "admin publisher add"),
    (yamllint, WARM, "      - uses", "     - uses"),
    (yamllint, COMPOSE, "volumes:\n  certificates:", "volumes:\n  certificates:\n  certificates:"),
    (yamllint, INIT, "          command:\n            - sh", "          command:\n           - sh"),
    (manifests, INIT, "emptyDir: {sizeLimit: 10Gi}", "emptydir: {sizeLimit: 10Gi}"),
    (manifests, INIT, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    (manifests, VOLUME, "image: {reference:", "image: {name:"),
    (words, VOLUME, "cachesvc oci push team/bert", "cachesvc oci put team/bert"),
    (words, VOLUME, "--format volume", "--formats volume"),
    (one_writer, AGENT, "mountPath: /var/cache/cachesvc, readOnly: true", "mountPath: /var/cache/cachesvc"),
    (
        manifests,
        AGENT,
        "hostPath: {path: /var/cache/cachesvc, type: Directory}",
        "hostpath: {path: /var/cache}",
    ),
    (words, AGENT, "CACHESVC_NODE_STORE", "CACHESVC_NODE_STORES"),
    (kustomized, KUSTOMIZATION, "  - access.yaml\n", ""),
    (hadolint, ROOT / "Dockerfile", "WORKDIR /src", "WORKDIR src"),
    (hadolint, BUNDLES, "COPY --from=bundles", "ADD --from=bundles"),
    (words, COMPOSE, "CACHESVC_SERVER_LOG", "CACHESVC_SERVER_LOGS"),
    (words, WARM, "cachesvc admin publishers add", "cachesvc admin publishers new"),
    (words, INIT, "cachesvc-client pull team/bert --all", "cachesvc-client pull team/bert --every"),
    (words, INIT, "CACHESVC_BUNDLE", "CACHESVC_BUNDLES"),
    (words, GATE, "--machine", "--machines"),
    (words, BUNDLES, "cachesvc-client pull", "cachesvc-client fetch"),
    (words, ROOT / "Dockerfile", "cachesvc admin --local migrate", "cachesvc admin --lokal migrate"),
    (words, ROOT / "docs" / "operate.md", "cachesvc admin fsck", "cachesvc admin check"),
]


@pytest.mark.parametrize(
    ("check", "path"), {(check, path): None for check, path, _, _ in CHECKS if check is not words}
)
def test_a_file_passes(check: Callable[[Path], list[str]], path: Path) -> None:
    assert check(path) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_kubernetes_and_the_rules_accept_each_example(path: Path) -> None:
    if path != KUSTOMIZATION:
        assert manifests(path) == []
    assert yamllint(path) == []


def test_the_whole_folder_is_well_formed_yaml() -> None:
    assert yamllint(Path("deploy")) == []  # The path is relative, as the configuration's `ignore` is.


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_word_exists(path: Path) -> None:
    assert words(path) == []


@pytest.mark.parametrize(("check", "path", "old", "new"), CHECKS)
def test_a_planted_fault_is_found(
    tmp_path: Path, check: Callable[[Path], list[str]], path: Path, old: str, new: str
) -> None:
    shutil.copytree(
        path.parent, tmp_path / "here", ignore=shutil.ignore_patterns(".*", "tests", "benchmarks")
    )
    text = path.read_text()
    assert old in text
    planted = tmp_path / "here" / path.name
    planted.write_text(text.replace(old, new))
    assert check(planted)


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.stem)
def test_every_requirement_has_a_hash(path: Path) -> None:
    entries = path.read_text().replace("\\\n", "").splitlines()
    pinned = [entry for entry in entries if re.match(r"[\w.-]+(\[.*\])?==", entry)]
    assert pinned and [entry for entry in pinned if "--hash=sha256:" not in entry] == []


def missing_tests(shown_by: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the tests that the table names and that do not exist."""
    named = [test for tests in shown_by.values() for test in tests]
    return [
        test
        for test in named
        for file, _, name in [test.partition("::")]
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text()
    ]


def failure_modes(document: Path) -> list[str]:
    """Return the first cells of the page's table of failures."""
    table = document.read_text().partition("## When something fails")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    return [row.split("|")[1].strip() for row in rows]


def test_a_test_shows_every_failure_mode_of_the_page() -> None:
    modes = failure_modes(ROOT / "docs" / "operate.md")
    assert len(modes) > 15
    assert sorted(modes) == sorted(SHOWN_BY)
    assert missing_tests(SHOWN_BY) == []
    planted = "tests/registry/test_outages.py::test_redis_was_gone"
    assert missing_tests({**SHOWN_BY, "planted": (planted,)}) == [planted]


def settings_of(path: Path) -> list[str]:
    """Return the words with underscores that a page sets in code and that are no known setting. Metrics are
    compared with a registry's in tests/registry/test_monitoring.py."""
    known = set(Settings.model_fields) | TOOLS
    words = re.findall(r"`([a-z]+(?:_[a-z]+)+)(?: = [^`]*)?`", path.read_text())
    return [word for word in words if word not in known and not word.startswith("cachesvc_")]


def test_every_setting_of_the_page_exists(tmp_path: Path) -> None:
    document = ROOT / "docs" / "operate.md"
    assert settings_of(document) == []
    planted = tmp_path / "operate.md"
    planted.write_text("`grace_second`, `grace_seconds` and `cachesvc_gc_runs_total`")
    assert settings_of(planted) == ["grace_second"]


def test_the_examples_use_the_names_that_they_define() -> None:
    """The services read the config map and the secret of access.yaml."""
    [access] = yaml.safe_load_all((DEPLOY / "kubernetes" / "access.yaml").read_text())
    for path in EXAMPLES:
        loaded = [manifest for manifest in yaml.safe_load_all(path.read_text()) if manifest]
        for _, template in pods(loaded):
            for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
                for source in container.get("envFrom", []):
                    assert source["configMapRef"]["name"] == access["metadata"]["name"]
                names = {row["name"] for row in container.get("env", [])}
                if "CACHESVC_TOKEN" in names:
                    assert container["envFrom"]
