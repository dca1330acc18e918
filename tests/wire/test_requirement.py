"""What a user requires of a builder is read as it was meant, or refused."""

import pytest

from cachesvc_client.wire.manifest.requirement import Requirement

MAIN = "builder=https://github.com/org/app/*, ref=refs/heads/main"
BUILDER = "https://github.com/org/app/.github/workflows/warm.yml@refs/heads/main"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (MAIN, MAIN),
        ("ref=refs/heads/main,builder=https://github.com/org/app/*", MAIN),
        ("  builder=https://github.com/org/app/* ,  ref=refs/heads/main ", MAIN),
        ("builder=cachesvc:local", "builder=cachesvc:local"),
        ("builder=https://github.com/org/*", "builder=https://github.com/org/*"),
        (f"builder={BUILDER}", f"builder={BUILDER}"),
        ("builder=https://oidc.example/id/A1#system:serviceaccount:team:builder",) * 2,
        ("builder=https://github.com/org/app/*, ref=refs/tags/*",) * 2,
        (f"tree=clean, {MAIN}", f"{MAIN}, tree=clean"),
        ("tree=clean,builder=cachesvc:local", "builder=cachesvc:local, tree=clean"),
    ],
)
def test_one_spelling(text, same):
    assert Requirement.parse(text) == same
    assert Requirement.parse(same) == Requirement(same) == same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "main",
        "builder",
        "builder=",
        "builder=*",
        "builder=https://*",
        "builder=https://github.com/*",
        "builder=https://github.com/org*",
        "builder=https://github.com/org/app*",
        "builder=https://github.com//*",
        "builder=https://github.com//org/*",
        "builder=https://github.com/org//*",
        "builder=https://*/org/app/*",
        "builder=https://github.com/*/app/x",
        "builder=https://github.com/org/../evil/*",
        "builder=https://github.com/org/app/* or builder=https://github.com/evil/*",
        "builder=https://github.com/org/app/*; ref=refs/heads/main",
        "builder=https://github.com/org/app/*, builder=https://github.com/evil/app/*",
        "builder=https://github.com/org/app/*, ref=main",
        "builder=https://github.com/org/app/*, ref=*",
        "builder=https://github.com/org/app/*, ref=refs/*",
        "builder=https://github.com/org/app/*, ref=refs/heads/",
        "builder=https://github.com/org/app/*, ref!=refs/heads/main",
        "builder=https://github.com/org/app/*, branch=main",
        "builder=https://github.com/org/app/*,",
        "tree=clean",
        f"{MAIN}, tree=changed",
        f"{MAIN}, tree=",
        f"{MAIN}, tree=*",
        "builder=https://github.com/org/app/*, ref=refs/heads/main, ref=refs/heads/evil",
        "builder=cachesvc:local, ref=refs/heads/main",
        "ref=refs/heads/main",
        'builder="https://github.com/org/app/*"extra words',
        "builder=https://github.com/org/app/*\nref=refs/heads/main",
        "builder=https://github.com/org/äpp/*",
        "builder=https://github.com/org/app/" + "x" * 2000,
    ],
)
def test_what_could_be_misread_is_refused(text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each has its own message
        Requirement.parse(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("builder", "ref", "difference"),
    [
        (BUILDER, "refs/heads/main", None),
        (None, "refs/heads/main", "nothing says who built it"),
        ("cachesvc:local", "refs/heads/main", "built by cachesvc:local"),
        ("https://github.com/org/app-of-others/x@refs/heads/main", "refs/heads/main", "app-of-others"),
        ("https://github.com/org/app", "refs/heads/main", "built by"),
        ("http://github.com/org/app/x", "refs/heads/main", "built by"),
        (BUILDER, "refs/heads/main2", "built from refs/heads/main2"),
        (BUILDER, "refs/pull/7", "built from refs/pull/7"),
        (BUILDER, None, "no ref that anybody vouches for"),
        (BUILDER, "", "no ref that anybody vouches for"),
    ],
)
def test_who_meets_a_requirement(builder, ref, difference):
    said = Requirement.parse(MAIN).difference(builder, ref, None)
    assert said is None if difference is None else difference in said


@pytest.mark.parametrize(
    ("tree", "difference"),
    [
        ("clean", None),
        ("changed", "not those of its commit"),
        ("unknown", "nobody says"),
        ("", "nobody says"),
    ],
)
def test_the_files_must_be_those_of_the_commit(tree, difference):
    said = Requirement.parse(f"{MAIN}, tree=clean").difference(BUILDER, "refs/heads/main", tree)
    assert said is None if difference is None else difference in said
    assert Requirement.parse(MAIN).difference(BUILDER, "refs/heads/main", tree) is None
