"""Test that documents and docstrings have no avoided word, but for counts that only become smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import words


def test_no_file_has_more_avoided_words_than_the_list_says_and_none_fewer() -> None:
    assert list(words.changed(words.counts(), words.noted())) == [], "see python -m tools.words"
    assert list(words.noted()) == sorted(words.noted())
    assert all(words.noted().values())


PLANTS = {
    "give": "It gave the folder back.",
    "bring": "What an update brings.",
    "settle": "A settled start.",
    "leave": "They are left out.",
    "look": "It looks there.",
    "take": "It is taken by one.",
    "go by": "The bound goes by size.",
    "hold": "Held for a second.",
    "deed": "A deed counts.",
    "doubt": "No doubts.",
    "dearest": "The dearest first.",
    "somebody": "Somebody's file.",
    "whoever": "Whoever asks.",
    "nobody": "Nobody knows.",
}


@pytest.mark.parametrize("word", words.AVOIDED)
def test_a_planted_use_is_refused(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "cachesvc").mkdir()
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\n{PLANTS[word]}\n")
    (tmp_path / "cachesvc" / "one.py").write_text(f'class One:\n    """First.\n\n    {PLANTS[word]}"""\n')
    monkeypatch.setattr(words, "ROOT", tmp_path)
    assert words.counts() == {"docs/page.md": 1, "cachesvc/one.py": 1}
    assert len(list(words.changed(words.counts(), {"docs/page.md": 1}))) == 1
    for name, line in {"docs/page.md": 3, "cachesvc/one.py": 4}.items():
        text = (tmp_path / name).read_text()
        assert list(words.uses(text, python=name.endswith(".py"))) == [(line, word)]


def test_code_names_and_strings_are_no_use() -> None:
    page = "`take` and a look-up, the lookup, the holder, what is left.\n\n```\nnobody\n```\n[x](nobody.md)\n"
    module = 'def take() -> str:\n    """Return ``hold`` as `give`."""\n    # nobody\n    return "somebody"\n'
    assert list(words.uses(page)) == list(words.uses(module, python=True)) == []


def test_a_count_that_became_smaller_must_be_written() -> None:
    [line] = words.changed({}, {"docs/page.md": 2})
    assert line == "docs/page.md: 0 uses, and the list says 2: write the list"
