"""Put bundles into a service's image as docs/recipes/deployment.md says, and start it without a network.

torch is not in the image: it is mounted from this test's own environment, so that no gigabyte is copied.
The client is the image's own, and so are Python and the bundles."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from benchmarks.hosts import QUICK
from tests.deploy.charts import ROOT
from tests.deploy.running import run, variables
from tests.e2e.conftest import Built, built_once
from tests.services.process import free_port

from .conftest import Image
from .engine import BASE, RESTRICTED, Engine

ADMIN = "csv_" + "0123456789abcdef" * 3
KUBERNETES = ROOT / "deploy" / "kubernetes"
NAME = "team/bert"
SERVICE = "localhost/bert:1.0.0"
WARM = "localhost/bert:1.0.0-warm"
RUNS_ANYWHERE = ("--env", "LANG=C.UTF-8", "--env", "OMP_NUM_THREADS=2")


@dataclass(frozen=True)
class Registry:
    """Is a registry in a container that has ``team/bert``, and the variables of who builds an image."""

    engine: Engine
    variables: dict[str, str]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Compile a function here, as a builder does."""
    return built_once(tmp_path_factory.mktemp("bundle"), "function", "small", name=NAME, **QUICK)


@pytest.fixture(scope="module")
def registry(
    server_image: Image, bundle: Built, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """Serve in a container on this machine's loopback, which a build with `--network=host` reaches too."""
    place = tmp_path_factory.mktemp("registry")
    port = free_port()
    settings = {"HOST": "127.0.0.1", "PORT": str(port), "FIRST_TOKEN": ADMIN}
    options = [*RESTRICTED, "--network", "host", "-v", "bundles:/data"]
    options += [w for name, value in settings.items() for w in ("--env", f"CACHESVC_SERVER_{name}={value}")]
    with server_image.engine.started(server_image.tag, name="bundles", options=tuple(options)) as container:
        container.wait_for_health()
        url = f"http://127.0.0.1:{port}"
        admin = {"CACHESVC_URL": url, "CACHESVC_TOKEN": ADMIN, "CACHESVC_TRUSTED_KEYS": bundle.trusted}
        run(["admin", "signers", "add", bundle.trusted, "-n", "team"], admin, place)
        run(["push", str(bundle.bundle)], admin, place)
        words = ["admin", "tokens", "create", "--label", "x", "--role", "report", "-n", "team", "--json"]
        token = json.loads(run(words, admin, place))["secret"]
        yield Registry(server_image.engine, {**admin, "CACHESVC_TOKEN": token})


def build(registry: Registry, token: str, place: Path, service: str) -> str:
    """Build Dockerfile.bundles as its first lines say, with buildah for docker. Return buildah's output."""
    secret = place / "token"
    secret.write_text(token)
    values = {
        "CLIENT": "localhost/cachesvc-client:0.1.0",
        "SERVICE": service,
        **{name: registry.variables[name] for name in ("CACHESVC_URL", "CACHESVC_TRUSTED_KEYS")},
    }
    options = ["--isolation", "chroot", "--network", "host", "--pull=never", "--format", "docker"]
    options += ["-f", str(KUBERNETES / "Dockerfile.bundles"), "--secret", f"id=cachesvc-token,src={secret}"]
    options += [word for name, value in values.items() for word in ("--build-arg", f"{name}={value}")]
    return registry.engine.buildah("bud", *options, "-t", WARM, place)


@pytest.fixture(scope="module")
def service(client_image: Image, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the service's image of the recipe "A Docker image with the client", without torch."""
    page = (ROOT / "docs" / "recipes" / "deployment.md").read_text()
    [text] = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    assert "pip install torch /wheels" in text
    place = tmp_path_factory.mktemp("service")
    (place / "Dockerfile").write_text(text.replace("pip install torch /wheels", "pip install /wheels"))
    [wheel] = re.findall(r"`(pip wheel [^`]*)`", page)
    assert wheel == "pip wheel --no-deps -w wheels ./client"
    words = [sys_python(), "-m", *wheel.split()]
    words[words.index("wheels")] = str(place / "wheels")
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=300)
    from . import package_index

    options = package_index.build_options(place)
    return client_image.engine.build(place, "--from", BASE, *options, tag=SERVICE)


def sys_python() -> str:
    return str(Path(sysconfig.get_path("scripts")) / "python")


@pytest.fixture(scope="module")
def warm(registry: Registry, service: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the service's image with its bundles."""
    output = build(registry, registry.variables["CACHESVC_TOKEN"], tmp_path_factory.mktemp("warm"), service)
    assert NAME in output, output
    return WARM


def test_a_service_of_the_image_compiles_nothing_without_a_network(registry: Registry, warm: str) -> None:
    answer = serve(registry.engine, warm)
    observed = answer["observed"]
    assert answer["state"] == "hit", answer
    assert (observed["compilations"], observed["compiler_processes"]) == (0, 0), observed
    assert answer["eager_difference"] < 1e-5


def test_without_its_bundles_the_same_image_has_no_compiler_and_says_so(
    registry: Registry, service: str, warm: str
) -> None:
    """What the image restores is what it needs: the proof that the test before shows something."""
    del warm
    status, text = start(registry.engine, service)
    assert status != 0 and "InvalidCxxCompiler" in text, text


def serve(engine: Engine, image: str) -> dict[str, object]:
    status, text = start(engine, image)
    assert status == 0, text
    lines = [line for line in text.splitlines() if line.startswith("{")]
    loaded = json.loads(lines[-1])
    assert isinstance(loaded, dict)
    return loaded


def start(engine: Engine, image: str) -> tuple[int, str]:
    """Start the tests' program in the image as image-with-bundles.yaml starts a service."""
    [manifest] = yaml.safe_load_all((KUBERNETES / "image-with-bundles.yaml").read_text())
    spec = manifest["spec"]["template"]["spec"]
    [container] = spec["containers"]
    packages, programs = sysconfig.get_path("purelib"), ROOT / "tests" / "e2e" / "programs"
    environment = {**variables(container, {}), **QUICK, "PYTHONPATH": "/torch"}
    options = [*RESTRICTED, *RUNS_ANYWHERE, "--network", "none"]
    options += ["--user", str(spec["securityContext"]["runAsUser"])]
    options += ["-v", f"{packages}:/torch:ro", "-v", f"{programs}:/programs:ro"]
    options += [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    return engine.once(image, "python", "/programs/serve.py", "when=never", "small=1", options=tuple(options))


def test_no_layer_has_the_token(registry: Registry, warm: str, tmp_path: Path) -> None:
    """Neither the token of the build, nor the folder at which it was mounted with something in it."""
    file = tmp_path / "image.tar"
    registry.engine.podman("save", "--format", "docker-archive", "-o", file, warm, seconds=300)
    secrets = {registry.variables["CACHESVC_TOKEN"].encode(), ADMIN.encode()}
    assert secrets_in(file, secrets) == []
    assert secrets_in(file, {b"CACHESVC_BUNDLE=/bundles"}), "the search finds nothing at all"
    with registry.engine.files(warm) as root:
        assert not list(root.glob("run/secrets/*"))
        bundles = list(root.glob("bundles/*.cachesvc"))
        assert len(bundles) == 1
        assert bundles[0].stat().st_mode & 0o004, "another user cannot read it"


def secrets_in(archive: Path, secrets: set[bytes]) -> list[str]:
    """Return the files of an image's archive that hold one of these, the layers' files among them."""
    places = []
    with tarfile.open(archive) as image:
        for member in image:
            stream = image.extractfile(member)
            if stream is None:
                continue
            content = stream.read()  # A layer is a tar file that is not compressed here.
            places += [member.name for secret in secrets if secret in content]
    return places


def test_a_wrong_token_ends_the_build_in_one_line(registry: Registry, service: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        build(registry, "csv_" + "0" * 48, tmp_path, service)
    lines = [line for line in str(failure.value).splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "token" in lines[0], str(failure.value)
