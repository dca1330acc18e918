"""Test the contents of each distribution, and that the client needs few packages and no torch."""

import importlib.metadata
import json
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

import cachesvc
import cachesvc_client
from tools import try_release
from tools.release import another_environment, build, copy_sources
from tools.release_files import ROOT, run

NAMES = ["cachesvc", "cachesvc_client"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build the wheel of each distribution from its source distribution."""
    built = build(tmp_path_factory.mktemp("wheels"))
    assert sorted(path.name.split("-")[0] for path in built if path.name.endswith(".tar.gz")) == NAMES
    return {path.name.split("-")[0]: path for path in built if path.suffix == ".whl"}


@pytest.fixture(scope="module")
def bare(wheels, tmp_path_factory):
    """Return the Python of a fresh environment that holds the client and its pinned requirements only."""
    folder = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "client.txt")
    run(*pip, "--no-deps", wheels["cachesvc_client"])
    return python


@pytest.fixture(scope="module")
def index(wheels, tmp_path_factory):
    """Serve an index of the two wheels. Return its address."""
    with try_release.index(wheels["cachesvc"].parent, tmp_path_factory.mktemp("index")) as url:
        yield url


@pytest.fixture
def others_only(tmp_path):
    """Return a folder with the packages of this environment, but for this project's own."""
    folder = tmp_path / "others"
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "cachesvc" not in entry.name and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


def contents(wheel):
    return zipfile.ZipFile(wheel).namelist()


def packages(wheel):
    return {
        name.split("/")[0] for name in contents(wheel) if ".dist-info" not in name and name.endswith(".py")
    }


def metadata(wheel) -> Distribution:
    folder = next(path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info"))
    return PathDistribution(folder)


def test_the_server_s_wheel_has_the_files_of_the_web_page(wheels):
    folder = ROOT / "cachesvc" / "ui"
    files = [path for name in ("templates", "static") for path in (folder / name).iterdir()]
    assert len(files) > 10
    assert {str(path.relative_to(ROOT)) for path in files} <= set(contents(wheels["cachesvc"]))


def test_the_server_s_wheel_has_the_example_of_quickstart(wheels):
    files = [path.name for path in (ROOT / "examples" / "quickstart").glob("*.*")]
    assert {f"cachesvc/example/{name}" for name in files} <= set(contents(wheels["cachesvc"]))


def test_another_environment_builds_the_same_bytes(wheels, tmp_path):
    with another_environment():
        again = build(tmp_path)
    first = sorted(wheels["cachesvc"].parent.iterdir())
    assert [path.name for path in again] == [path.name for path in first]
    assert [
        path.name for path, other in zip(again, first, strict=True) if path.read_bytes() != other.read_bytes()
    ] == []


def test_the_client_needs_fewer_than_four_packages(wheels):
    needs = [line for line in metadata(wheels["cachesvc_client"]).requires or [] if "extra ==" not in line]
    assert 0 < len(needs) < 4, needs
    assert not [line for line in needs if line.startswith(("torch", "triton"))]


def test_the_version_has_one_place(tmp_path):
    """A change of that line alone changes both distributions, and the requirement between them."""
    copy_sources(tmp_path / "tree")
    place = tmp_path / "tree/client/cachesvc_client/__init__.py"
    place.write_text(place.read_text().replace(f'"{cachesvc_client.__version__}"', '"9.8.7"'))
    build = "import setuptools.build_meta as b, sys; b.prepare_metadata_for_build_wheel(sys.argv[1])"
    distributions = {}
    for name, source in (("cachesvc_client", "client"), ("cachesvc", ".")):
        (tmp_path / name).mkdir()
        run(sys.executable, "-c", build, tmp_path / name, cwd=tmp_path / "tree" / source)
        distributions[name] = PathDistribution(tmp_path / name / f"{name}-9.8.7.dist-info")
    assert {distribution.version for distribution in distributions.values()} == {"9.8.7"}
    assert "cachesvc-client==9.8.7" in distributions["cachesvc"].requires


def test_the_versions_agree():
    assert cachesvc.__version__ == cachesvc_client.__version__
    for name in ("cachesvc", "cachesvc-client"):
        assert importlib.metadata.version(name) == cachesvc.__version__, "installed from another commit?"


@pytest.mark.parametrize("command", ["cachesvc", "cachesvc-client"])
def test_each_command_prints_its_version(command):
    output = run(Path(sys.executable).parent / command, "--version")
    assert output.split() == [command, cachesvc.__version__]


@pytest.mark.parametrize("name", NAMES)
def test_each_wheel_carries_its_own_readme(wheels, name):
    text = metadata(wheels[name]).metadata
    assert text["Description-Content-Type"] == "text/markdown"
    assert text.get_payload().lstrip().startswith(f"# {name.replace('_', '-')}\n")


def test_the_wheels_do_not_overlap(wheels):
    assert packages(wheels["cachesvc_client"]) == {"cachesvc_client"}
    assert packages(wheels["cachesvc"]) == {"cachesvc"}
    assert "cachesvc_client/py.typed" in contents(wheels["cachesvc_client"])
    assert "cachesvc/py.typed" in contents(wheels["cachesvc"])


@pytest.mark.parametrize("name", NAMES)
def test_the_licence_is_in_each_wheel(wheels, name):
    assert any(path.endswith("licenses/LICENSE") for path in contents(wheels[name]))


def test_every_module_is_in_a_wheel(wheels):
    """A folder without ``__init__.py`` works in the tree and is missing in the wheel."""
    packed = {*contents(wheels["cachesvc_client"]), *contents(wheels["cachesvc"])}
    here = {path.relative_to(ROOT / "client") for path in (ROOT / "client/cachesvc_client").rglob("*.py")}
    here |= {path.relative_to(ROOT) for path in (ROOT / "cachesvc").rglob("*.py")}
    assert {str(path) for path in here} <= packed


def test_the_client_alone_imports_without_torch(bare):
    code = """
import importlib.metadata, importlib.util, json, sys
before = set(sys.modules)
import cachesvc_client
print(json.dumps({
    "file": cachesvc_client.__file__,
    "torch": importlib.util.find_spec("torch") is not None,
    "server": importlib.util.find_spec("cachesvc") is not None,
    "distributions": sorted(found.name for found in importlib.metadata.distributions()),
    "foreign": sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names),
}))
"""
    modules = json.loads(run(bare, "-I", "-c", code))
    assert str(bare.parent.parent) in modules["file"]
    assert not modules["torch"]
    assert not modules["server"]
    assert "cachesvc-client" in modules["distributions"]
    assert modules["foreign"] == ["cachesvc_client"]


def test_the_pinned_requirements_are_everything_that_the_client_needs(bare):
    run(sys.executable, "-m", "pip", "--python", bare, "check")


def test_importing_the_client_does_not_import_torch_where_it_is_installed():
    code = "import sys, cachesvc_client; print(sorted({'torch', 'triton'} & set(sys.modules)))"
    assert run(sys.executable, "-c", code, cwd=ROOT / "client").strip() == "[]"


@pytest.mark.parametrize(
    ("wish", "commands"),
    [
        ("cachesvc-client", ["cachesvc-client --version"]),
        ("cachesvc[server]", ["cachesvc --version", "cachesvc warm --schema", "cachesvc serve --help"]),
    ],
)
def test_each_is_installed_by_its_name_from_an_index(index, others_only, tmp_path, wish, commands):
    """What they require is there already, so the index needs nothing else and pip asks no other one."""
    environment = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "others.pth").write_text(f"{others_only}\n")
    pip = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "-q", "--index-url", index, wish)
    installed = {name for name in NAMES if (site / name).is_dir()}
    assert installed == ({"cachesvc_client"} if wish == "cachesvc-client" else set(NAMES))
    for command in commands:
        program, *words = command.split()
        assert run(environment / "bin" / program, *words, cwd=tmp_path)
