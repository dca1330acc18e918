"""Test that the documents agree with the code and with each other."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
import typer
import yaml

import cachesvc_client
from cachesvc import cli
from cachesvc_client.wire.errors import ALL
from tests.deploy.words import unknown_words
from tools import (
    commands_page,
    exit_codes_page,
    faults_page,
    field_page,
    json_page,
    rest_page,
    settings_page,
    versions_page,
)

from .markdown import DOCS, README, ROOT, anchors, blocks, fenced, prose, units

GENERATED = (
    settings_page,
    commands_page,
    rest_page,
    exit_codes_page,
    json_page,
    versions_page,
    faults_page,
    field_page,
)
WRITTEN = [README, *(path for path in sorted(DOCS.rglob("*.md")) if "by `make" not in path.read_text()[:400])]
"""Every page that a person wrote, and no generated one."""
FOR_USERS = [path for path in WRITTEN if path.parent.name != "adr"]
FRONT = sorted(ROOT.glob("*.md"))
"""The README, and the pages beside it that GitHub shows."""
THREAT_MODEL = DOCS / "security" / "threat-model.md"
VARIABLES = DOCS / "reference" / "variables.md"
SECTIONS = {"Home", "Learn", "Use", "Operate"}
"""The sections of the site that users and operators read. Inside are measurements and what is for those who
change cachesvc; the reference is looked up."""
WORDS = 38_000
"""Words of these sections, at most. With the measurements they are below 40,000."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.__name__)
def test_a_generated_page_is_current(page: ModuleType) -> None:
    assert page.PAGE.read_text() == page.render(), "run `make pages`"


def test_each_command_is_registered_by_the_module_that_is_imported_for_it() -> None:
    for module in cli.COMMANDS:
        importlib.import_module(f"{cli.__name__}.{module}")
    commands = typer.main.get_group(cli.app).commands
    # Sorted: another test of this process may have run a command, which imports that command's module first.
    assert sorted(commands) == sorted(name for names in cli.COMMANDS.values() for name in names)
    for name, command in commands.items():
        assert [command.callback.__module__] == [f"{cli.__name__}.{one}" for one in cli.needed_modules(name)]
    assert cli.needed_modules("--help") == cli.needed_modules("serv") == tuple(cli.COMMANDS)


def test_every_setting_says_what_it_means() -> None:
    assert settings_page.undocumented() == []


def test_every_exit_status_of_an_error_has_a_meaning() -> None:
    assert {error.exit_status for error in ALL.values()} <= set(exit_codes_page.MEANINGS)


def variables_in_code() -> set[str]:
    """Return the names ``CACHESVC_*`` that the code of the client and of `warm` reads: whole text constants,
    not words of a message."""
    names = set()
    rooms = ("client/cachesvc_client", "cachesvc/warm", "cachesvc/cli")
    for file in (file for room in rooms for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= set(re.findall(r"^CACHESVC_[A-Z_]+$", node.value))
    return names


def test_the_table_of_variables_has_every_variable_of_the_client() -> None:
    names = re.findall(r"^\| `(CACHESVC_\w+)`", VARIABLES.read_text(), re.MULTILINE)
    assert set(names) == variables_in_code()


@pytest.mark.parametrize("path", sorted({*FRONT, *FOR_USERS}), ids=name_of)
def test_every_command_and_variable_that_a_page_names_exists(path: Path) -> None:
    text = path.read_text()
    inline = re.findall(r"`((?:cachesvc|CACHESVC_)[^`\n]+)`", prose(text))
    assert unknown_words("\n".join(["", *fenced(text)])) == []
    assert [problem for code in inline for problem in unknown_words(code, code=True)] == []


@pytest.mark.parametrize("path", [*FRONT, *sorted(DOCS.rglob("*.md"))], ids=name_of)
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        target, _, anchor = link.partition("#")
        if re.match(r"https?:", link):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", FOR_USERS, ids=name_of)
def test_a_page_reads_well(path: Path) -> None:
    """A page has no long lines and paragraphs, no dialect, no names of tests, and no links to missing
    documents. The threat model alone names tests: each is a line of its own."""
    text = prose(path.read_text())
    if path == THREAT_MODEL:
        text = re.sub(r"^  `tests/[^`]+`$", "", text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    |"))]
    assert [line for line in lines if len(line) > 125] == []
    assert [unit[:60] for unit in units(text) if len(unit) > 900] == []
    assert re.findall(r"\bmend\w*|tests/\w+/test_\w+|DESIGN\b|pytorch-facts", text) == []


def words(text: str) -> list[str]:
    """Return the words that a person wrote on a page: no code blocks, generated tables and names of tests."""
    text = re.sub(r"<!-- Generated.*?<!-- End of what is generated. -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^  `tests/[^`]+`$", "", prose(text), flags=re.MULTILINE)
    return re.findall(r"\S*\w\S*", text)


def test_what_users_and_operators_read_stays_short() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    sections = {title: pages for section in nav for title, pages in section.items()}
    assert sections.keys() >= SECTIONS
    pages = re.findall(r"[\w/-]+\.md", str([sections[title] for title in SECTIONS]))
    written = {page: len(words((DOCS / page).read_text())) for page in pages}
    assert sum(written.values()) <= WORDS, sorted(written.items(), key=lambda item: -item[1])


def test_a_word_is_what_a_person_wrote() -> None:
    page = "One `two` | 3 |\n\n```\nfour\n```\n<!-- Generated\n| five |\n<!-- End of what is generated. -->\n"
    assert words(f"{page}\n- six:\n  `tests/a.py::test_b`\n") == ["One", "`two`", "3", "six:"]


def test_the_messages_that_troubleshooting_quotes_exist() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    cells = re.findall(r"^\| ([^|]*`[^|]*) \|", text.partition("## Nothing was installed")[2], re.MULTILINE)
    quoted = [phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell) if phrase.count(" ") > 1]
    rooms = ("client/cachesvc_client", "cachesvc/registry", "cachesvc/domain", "cachesvc/index")
    folders = tuple(ROOT / room for room in rooms)
    code = "\n".join(file.read_text() for folder in folders for file in folder.rglob("*.py"))
    assert len(quoted) > 4
    assert [phrase for phrase in quoted if re.sub(r"\d+\.\d", "%.1f", phrase) not in code] == []


def test_every_public_function_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "python.md").read_text()
    names = re.findall(r"^::: cachesvc_client\.(\w+)$", text, re.MULTILINE)
    assert set(names) == set(cachesvc_client.__all__)


def test_the_list_of_decisions_has_every_decision_with_its_title() -> None:
    documented = dict(re.findall(r"^- \[(.+)\]\((0\d+-[\w-]+\.md)\)", index_lines(), re.MULTILINE))
    files = sorted((DOCS / "adr").glob("0*.md"))
    titles = {path.read_text().splitlines()[0].removeprefix("# "): path.name for path in files}
    assert documented == titles


def test_the_glossary_defines_each_word_once_in_order() -> None:
    tables = (DOCS / "glossary.md").read_text().split("\n## ")[1:]
    words = [re.findall(r"^\| ([a-z][a-z ]+) \| ", table, re.MULTILINE)[1:] for table in tables]
    assert [sorted(each) for each in words] == words
    assert len({word for each in words for word in each}) == sum(map(len, words))
    assert len(words[0]) == 15, "what the owner of a service needs"


@pytest.mark.parametrize("path", sorted((DOCS / "adr").glob("0*.md")), ids=name_of)
def test_a_decision_has_a_status_and_the_parts_of_the_template(path: Path) -> None:
    template = (DOCS / "adr" / "template.md").read_text()
    text = path.read_text()
    assert re.findall("^## .+", text, re.MULTILINE) == re.findall("^## .+", template, re.MULTILINE)
    assert re.search(
        r"\n\nStatus: (accepted|superseded by \[\d{4}\]\()[^\n]*, \d{4}-\d\d-\d\d[^\n]*\n\n## ", text
    )
    assert text.startswith(f"# {path.name[:4]}: ")


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(path.name[:4]) for path in sorted((DOCS / "adr").glob("0*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def index_lines() -> str:
    """Return the index of decisions, with entries of two lines joined."""
    return re.sub(r"\n  +", " ", (DOCS / "adr" / "index.md").read_text())


def test_the_readme_begins_with_the_two_commands_that_set_everything_up() -> None:
    [first, *_] = blocks(README.read_text(), "")
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make demo", "make test"]
    assert README.read_text().index(first) < 20
    assert len(README.read_text().splitlines()) < 150
