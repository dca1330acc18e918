"""Which keys count for which path."""

from __future__ import annotations

import pytest

from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.trust_root.policy import SignerPolicy, fits
from cachesvc_client.wire.errors import Corrupt, Untrusted
from cachesvc_client.wire.manifest.records import Statement
from cachesvc_client.wire.names import Lane, Namespace, ShortName, Tag, Target

from .repository import NOW, URL, Files, Repository

TRUNK, LANES = "team/trunk/*/*", "team/lane/pr-*/*/*"


def statement(name: str = "bert", namespace: str = "team", lane: str | None = None) -> Statement:
    return Statement(
        namespace=Namespace(namespace),
        name=ShortName(name),
        tag=Tag("latest"),
        target=Target("a"),
        sequence=1,
        lane=Lane(lane) if lane else None,
    )


def policy(repository: Repository) -> SignerPolicy:
    repository.publish("targets", "snapshot", "timestamp")
    return SignerPolicy(repository.refresh(Files()).targets, URL)


@pytest.fixture
def repository() -> Repository:
    return Repository()


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("team/trunk/bert/latest", TRUNK, True),
        ("team/trunk/a:bert/latest", TRUNK, True),
        ("team/trunk/a/bert/latest", TRUNK, False),
        ("team2/trunk/bert/latest", TRUNK, False),
        ("team/lane/pr-1/bert/v1", LANES, True),
        ("team/lane/other/bert/v1", LANES, False),
        ("team/trunk/Bert/latest", "team/trunk/bert/*", False),
        ("team/trunk/bert/v1", "*/trunk/*/v?", True),
    ],
)
def test_patterns(path: str, pattern: str, expected: bool) -> None:
    assert fits(path, pattern) is expected


def test_signer_of_the_namespace_counts(repository: Repository) -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    repository.delegate("team", [key], [TRUNK])
    repository.delegate("other", [other], ["other/trunk/*/*"])
    decided = policy(repository)
    assert decided.check(statement(), {key.public}) == key.public
    assert decided.check(statement("group/bert"), {key.public}) == key.public
    for refused in ({other.public}, set()):
        with pytest.raises(Untrusted, match=r"demands 1 of 1 \(team\)"):
            decided.check(statement(), refused)
    with pytest.raises(Untrusted, match="delegates third/trunk/bert/latest to nobody"):
        decided.check(statement(namespace="third"), {key.public})


def test_signer_of_a_lane_does_not_count_for_the_trunk(repository: Repository) -> None:
    trunk, lane = SigningKey.generate(), SigningKey.generate()
    repository.delegate("team", [trunk], [TRUNK])
    repository.delegate("team.lanes", [lane], [LANES])
    decided = policy(repository)
    assert decided.check(statement(lane="pr-7"), {lane.public}) == lane.public
    for refused in (statement(), statement(lane="nightly")):
        with pytest.raises(Untrusted):
            decided.check(refused, {lane.public})


def test_threshold_of_a_namespace(repository: Repository) -> None:
    keys = [SigningKey.generate() for _ in range(3)]
    repository.delegate("team", keys, [TRUNK], threshold=2)
    decided = policy(repository)
    decided.check(statement(), {keys[0].public, keys[2].public})
    with pytest.raises(Untrusted, match="demands 2 of 3"):
        decided.check(statement(), {keys[0].public})


def test_nothing_follows_a_terminating_role(repository: Repository) -> None:
    first, second = SigningKey.generate(), SigningKey.generate()
    repository.delegate("first", [first], [TRUNK], terminating=True)
    repository.delegate("second", [second], ["*/trunk/*/*"])
    decided = policy(repository)
    assert decided.check(statement(), {first.public}) == first.public
    with pytest.raises(Untrusted):
        decided.check(statement(), {second.public})
    assert decided.check(statement(namespace="other"), {second.public}) == second.public


def test_revoked_key_is_told_apart_and_counts_nowhere(repository: Repository) -> None:
    key = SigningKey.generate()
    repository.delegate("team", [key], [TRUNK])  # the role still names it: the revocation is stronger
    repository.targets.unrecognized_fields["x-cachesvc-revoked"] = [
        {"key": str(key.public), "at": NOW, "reason": "leaked by a log"}
    ]
    decided = policy(repository)
    assert key.public in decided.keys
    with pytest.raises(Untrusted, match=r"revoked on 2027-01-15: leaked by a log"):
        decided.check(statement(), {key.public})


def test_an_age_of_the_namespace_counts_before_that_of_all(repository: Repository) -> None:
    assert policy(repository).max_age(Namespace("team")) is None
    repository.targets.unrecognized_fields["x-cachesvc-max-age"] = {"*": 500, "team": 30}
    decided = policy(repository)
    assert (decided.max_age(Namespace("team")), decided.max_age(Namespace("other"))) == (30, 500)


@pytest.mark.parametrize(
    "ages", [7, None, ["team"], {"team": "30d"}, {"team": 0}, {"team": -1}, {"team": True}]
)
def test_ages_that_are_none_are_refused(repository: Repository, ages: object) -> None:
    """An age that is left out, because it cannot be read, would be a longer one."""
    repository.targets.unrecognized_fields["x-cachesvc-max-age"] = ages
    with pytest.raises(Corrupt, match=r"x-cachesvc-max-age|team"):
        policy(repository)
