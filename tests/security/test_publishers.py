"""A CI job gets a token of minutes by the administrators' rules, and nobody else gets one."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from registry_making import ok

from cachesvc.api.routes.publishers import SPREAD_SECONDS
from cachesvc.oidc.documents import FETCH_SECONDS
from cachesvc_client.bundle.seal import SigningKey

from .issuer import Issuer, part, running_issuer
from .job_world import AUDIENCE, MAIN, PULL, World, job_world


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def world(tmp_path: Path, key: SigningKey) -> Iterator[World]:
    with job_world(tmp_path, key) as running:
        yield running


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_job_of_main_publishes_to_the_trunk(world: World, algorithm: str) -> None:
    world.issuer.add_key("other", algorithm)
    rule = world.rule()
    claims = world.claims()
    answer = world.exchange(world.issuer.sign(claims, "other"))
    assert answer.status_code == 201, answer.text
    token = answer.json()
    assert (token["role"], token["namespace"], token.get("lane")) == ("write", "team", None)
    assert token["expires"] == int(world.clock()) + 15 * 60
    assert answer.headers["cache-control"] == "no-store"
    assert world.publish(token["secret"]).status_code == 200
    assert world.call("GET", "/v1/tokens", token["secret"]).status_code == 403
    audit = world.call("GET", "/v1/audit?action=token.exchange", world.admin).json()["rows"]
    [row] = [row for row in audit if row["subject"] == token["token"]]
    assert row["details"]["who"] == f"oidc:{world.issuer.url} {claims['sub']}"
    assert "repository=org/app" in row["details"]["claims"] and row["details"]["publisher"] == rule
    assert token["secret"] not in str(audit)


def test_a_job_of_another_service_has_the_wrong_audience(world: World) -> None:
    world.rule()
    for audience in ("https://other.example", ["https://other.example"], AUDIENCE + "/", ""):
        world.refused(world.issuer.sign(world.claims(aud=audience)), 403, "audience")
    world.refused(world.issuer.sign(world.claims(aud=None)), 401, "aud")
    world.refused(world.issuer.sign(world.claims(aud={"a": 1})), 401, "aud")
    assert world.issued(aud=[AUDIENCE])["role"] == "write"


def test_a_token_that_another_service_received_too_gets_nothing(world: World) -> None:
    world.rule()
    for audiences in (["https://other.example", AUDIENCE], [AUDIENCE, ""], [AUDIENCE, AUDIENCE + "/"]):
        world.refused(world.issuer.sign(world.claims(aud=audiences)), 401, "several audiences")
    world.refused(world.issuer.sign(world.claims(aud=[])), 401, "aud")


def test_a_job_of_another_branch_has_the_wrong_ref(world: World) -> None:
    world.rule()
    for ref in ("refs/heads/other", "refs/heads/main2", "REFS/heads/main", "main", ""):
        world.refused(world.issuer.sign(world.claims(ref=ref)), 403, "the claim ref is")


def test_a_stranger_s_repository_learns_nothing_of_the_rules(world: World) -> None:
    world.rule(claims={"repository": "org/*", "ref": "refs/heads/main"})
    for repository in ("organisation/app", "evil/app", "org"):
        token = world.issuer.sign(world.claims(repository=repository))
        world.refused(token, 403, "no rule names it")
        assert "refs/heads" not in world.exchange(token).text
    assert world.issued()["role"] == "write"


def test_a_job_without_the_claim_gets_nothing(world: World) -> None:
    world.rule()
    for value in (None, 7, True, ["refs/heads/main"]):
        world.refused(world.issuer.sign(world.claims(ref=value)), 403, "the claim ref is missing")
    for value in (None, 7):
        world.refused(world.issuer.sign(world.claims(sub=value)), 401, "sub")


def test_a_thief_of_an_old_token_is_too_late(world: World) -> None:
    world.rule()
    now = int(world.clock())
    world.refused(world.issuer.sign(world.claims(exp=now - 61)), 401, "expired")
    world.refused(world.issuer.sign(world.claims(exp=None)), 401, "expires")
    world.refused(world.issuer.sign(world.claims(exp="tomorrow")), 401, "not a time")
    world.refused(world.issuer.sign(world.claims(exp=now + 40 * 86400)), 401, "longer than a day")
    world.issued(exp=now - 50)  # within the skew of the clocks


def test_a_token_for_later_does_not_count_yet(world: World) -> None:
    world.rule()
    now = int(world.clock())
    for name in ("nbf", "iat"):
        world.refused(world.issuer.sign(world.claims(**{name: now + 62})), 401, "not valid yet")
    world.issued(nbf=now + 50)


def test_a_thief_who_replays_a_token_gets_nothing(world: World) -> None:
    world.rule()
    token = world.issuer.sign(world.claims())
    assert world.exchange(token).status_code == 201
    world.refused(token, 401, "used already")
    claims = world.claims(jti=None)  # without an id, what is signed is the id
    token = world.issuer.sign(claims)
    assert world.exchange(token).status_code == 201
    world.refused(token, 401, "used already")
    # ECDSA: (r, n - s) is a signature of the same bytes.
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    head, _, text = token.rpartition(".")
    raw = base64.urlsafe_b64decode(text + "==")
    turned = raw[:32] + (order - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    other = f"{head}.{base64.urlsafe_b64encode(turned).rstrip(b'=').decode()}"
    world.refused(other, 401, "used already")
    world.clock.now += 200  # longer than the 5 s that hints live
    world.refused(token, 401, "used already")


def test_a_withdrawn_key_ends_and_a_new_one_is_found(world: World) -> None:
    world.rule()
    world.issued()
    old = dict(world.issuer.keys)
    world.issuer.keys.clear()
    world.issuer.add_key("two")
    fetched = len(world.issuer.requests)
    token = world.issuer.sign(world.claims(), "two")
    world.refused(token, 401, "no key 'two'")
    assert len(world.issuer.requests) == fetched, "an unknown key is looked for once a minute at most"
    world.clock.now += 61
    assert world.exchange(token).status_code == 201
    world.issuer.keys.update(old)
    stolen = world.issuer.sign(world.claims(), "one")
    del world.issuer.keys["one"]
    world.refused(stolen, 401, "no key 'one'")


def test_strangers_with_made_up_keys_make_no_traffic(world: World) -> None:
    world.rule()
    world.issued()
    fetched = len(world.issuer.requests)
    for number in range(20):
        world.refused(world.issuer.sign(world.claims(), kid=f"k{number}"), 401, "no key")
    assert len(world.issuer.requests) == fetched


def test_a_forger_without_a_key_signs_nothing(world: World) -> None:
    world.rule()
    key = world.issuer.keys["one"][1]
    world.refused(world.issuer.unsigned(world.claims()), 401, "'none'")
    for secret in (key.as_pem(private=False), str(key.as_dict(private=False)["x"]).encode()):
        world.refused(world.issuer.signed_by_hmac(world.claims(), secret), 401, "'HS256'")
    token = world.issuer.sign(world.claims())
    head, _, signature = token.rpartition(".")
    forged = f"{head.split('.')[0]}.{part(world.claims(ref='refs/heads/main'))}.{signature}"
    world.refused(forged, 401, "signature")
    world.refused(f"{head}.", 401, "signature")
    forger = Issuer(world.issuer.url)
    forger.add_key("one")
    world.refused(forger.sign(world.claims()), 401, "signature")
    own = forger.keys["one"][1].as_dict(private=False)
    world.refused(forger.sign(world.claims(), jwk=own), 401)
    world.refused(world.issuer.sign(world.claims(), crit=["b64"], b64=True), 401)
    for issuer in ("a\0b", 7, None):
        world.refused(world.issuer.unsigned(world.claims(iss=issuer)), 401, "no issuer")
    world.refused(world.issuer.unsigned(world.claims(iss="\ud800")), 401, "claims cannot be read")
    for text in ("a.b", "a.b.c", "....", "e30.e30.e30", "x" * 16384):
        world.refused(text, 401)


STRANGE = {
    "deep": lambda text: text[:-1] + ', "x": ' + "[" * 5000 + "]" * 5000 + "}",
    "twice": lambda text: text[:-1] + ', "repository": "org/app"}',
    "endless number": lambda text: text[:-1] + ', "x": ' + "9" * 9000 + "}",
    "infinite": lambda text: text.replace('"exp":', '"exp": 1e999, "e":'),
    "no number": lambda text: text.replace('"nbf"', '"x": NaN, "nbf"'),
    "half a letter": lambda text: text.replace('"nbf"', '"x": "\\ud800", "nbf"'),
    "list": lambda text: f"[{text}]",
    "token": lambda text: f'"{text.encode().hex()}"',
}


def test_an_issuer_that_signs_what_is_no_claims_stops_nothing(world: World) -> None:
    """It is its own rule's issuer: nothing but an answer in one line comes of it."""
    world.rule()
    algorithm, key = world.issuer.keys["one"]
    for strange in STRANGE.values():
        text = strange(json.dumps(world.claims()))
        signed = jws.serialize_compact({"alg": algorithm, "kid": "one"}, text, key, algorithms=[algorithm])
        world.refused(signed, 401)
        assert world.issued()["role"] == "write"


def test_an_issuer_of_another_namespace_gives_its_jobs_nothing_here(world: World) -> None:
    """Also under the other's name, with a key of the same id, and where it says that it is the other."""
    world.rule()
    with running_issuer() as other:
        world.rule(issuer=other.url, namespace="other")
        token = ok(world.exchange(other.sign(other.claims(world.clock()))))
        assert token["namespace"] == "other"
        world.refused(other.sign(other.claims(world.clock())), 403, "namespace", namespace="team")
        world.refused(other.sign(other.claims(world.clock(), iss=world.issuer.url)), 401, "signature")
        other.discovery = {"issuer": world.issuer.url, "jwks_uri": f"{world.issuer.url}/keys"}
        world.clock.now += 3700
        world.refused(world.issuer.sign(world.claims(iss=other.url)), 503)
        for written in (world.issuer.url + "/", world.issuer.url.upper(), world.issuer.url + "/."):
            world.refused(world.issuer.sign(world.claims(iss=written)), 403, "not trusted here")


def test_a_key_that_is_no_public_signing_key_does_not_count(world: World) -> None:
    world.rule()
    row = world.issuer.jwks()["keys"][0]
    for bad in ({**row, "use": "enc"}, {**row, "kty": "oct", "k": "c2VjcmV0"}, {**row, "alg": "HS256"}, 7):
        world.issuer.published = [bad]
        token = world.issuer.sign(world.claims())
        assert world.exchange(token).status_code in (401, 503)
        world.clock.now += 3700


def test_an_issuer_that_is_slow_holds_a_request_for_seconds(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.rule()
    world.issuer.drip = True
    token = world.issuer.sign(world.claims())
    began = time.monotonic()
    world.refused(token, 503, "its keys cannot be read", "operator")
    assert "no answer in time" in caplog.text
    assert time.monotonic() - began < FETCH_SECONDS + SPREAD_SECONDS + 1.5
    began = time.monotonic()
    world.refused(token, 503, "its keys cannot be read")
    assert time.monotonic() - began < SPREAD_SECONDS + 1.0, "the second request waits for no issuer"
    world.issuer.drip = False
    world.clock.now += 11
    assert world.exchange(token).status_code == 201


def test_crowds_for_an_issuer_that_is_silent_cost_no_look_at_the_index(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.rule()
    world.issuer.gone = True
    token = world.issuer.sign(world.claims())
    world.refused(token, 503, "its keys cannot be read")
    looks: list[int] = []
    index = world.http.app.state.registry.index  # type: ignore[attr-defined]
    read = index.read
    monkeypatch.setattr(type(index), "read", lambda _: (looks.append(1), read())[1])
    assert world.exchange(token).status_code == 503
    assert not looks
    assert (
        world.exchange(world.issuer.sign(world.claims(iss="https://unknown.example.com"))).status_code == 403
    )
    assert looks, "what no rule names is looked up"


def test_an_issuer_that_is_gone_is_one_line_and_its_known_keys_count_for_an_hour(world: World) -> None:
    world.rule()
    world.issuer.gone = True
    token = world.issuer.sign(world.claims())
    world.refused(token, 503, world.issuer.url, "operator", "/.well-known/openid-configuration")
    world.issuer.gone = False
    world.clock.now += 11
    assert world.exchange(token).status_code == 201
    world.issuer.gone = True
    world.clock.now += 1800
    world.issued()
    world.clock.now += 3601
    world.refused(world.issuer.sign(world.claims()), 503, "its keys cannot be read")


def test_an_issuer_that_sends_too_much_is_not_read_to_the_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.rule()
    world.issuer.padding = 4 << 20
    world.refused(world.issuer.sign(world.claims()), 503, "its keys cannot be read")
    assert "more than the 262144 bytes" in caplog.text


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example"},
        {"jwks_uri": "http://169.254.169.254/keys"},
        {"jwks_uri": "file:///etc/passwd"},
    ],
)
def test_an_issuer_that_points_elsewhere_is_not_followed(world: World, document: dict[str, str]) -> None:
    world.rule()
    world.issuer.discovery = document
    world.refused(world.issuer.sign(world.claims()), 503, "its keys cannot be read")


def test_an_issuer_that_nobody_named_is_not_asked(world: World) -> None:
    with running_issuer() as stranger:
        world.rule()
        token = stranger.sign(stranger.claims(world.clock()))
        world.refused(token, 403, "not trusted here")
        assert stranger.requests == []


def test_a_pull_request_gets_its_lane_and_never_the_trunk(world: World) -> None:
    world.rule(claims={"repository": "org/app", "environment": "ci"})
    in_ci = {"environment": "ci"}
    signs = [
        PULL,
        {"ref": "refs/pull/7/merge"},
        {"ref": "refs/heads/main", "event_name": "pull_request_target"},
        {"sub": "repo:org/app:pull_request"},
        {"head_ref": "feature"},
        {"ref": "refs/merge-requests/7/head", "event_name": None},
        {"ref_path": "refs/merge-requests/7/head"},
        {"pipeline_source": "merge_request_event"},
    ]
    for sign in signs:
        world.refused(world.issuer.sign(world.claims(**in_ci, **sign)), 403, "never gets the trunk")
    world.rule(claims={"repository": "org/app"}, lane="pr-{number}")
    token = world.issued(**in_ci, **PULL)
    assert (token["lane"], token["role"]) == ("pr-7", "write")
    assert world.publish(token["secret"], lane="pr-7").status_code == 200
    for lane in (None, "pr-8"):
        assert world.publish(token["secret"], lane=lane).status_code == 403
    assert world.issued(**in_ci)["role"] == "write"
    for ref in ("refs/pull/../merge", "refs/pull/07/merge", "refs/pull/7/merge/x", "refs/pull/*/merge"):
        world.refused(world.issuer.sign(world.claims(**{**PULL, "ref": ref})), 403)


def test_a_job_gets_no_more_than_it_asks_for(world: World) -> None:
    world.rule()
    world.rule(namespace="other", claims=MAIN)
    token = world.exchange(world.issuer.sign(world.claims()), namespace="other", role="read").json()
    assert (token["namespace"], token["role"]) == ("other", "read")
    assert world.publish(token["secret"]).status_code == 403
    world.refused(world.issuer.sign(world.claims()), 403, namespace="third")
    world.refused(world.issuer.sign(world.claims()), 403, namespace="team", lane="pr-7")
    reader = world.rule(claims={"repository": "org/read", "ref": "refs/heads/main"}, role="read")
    assert reader
    world.refused(world.issuer.sign(world.claims(repository="org/read")), 403, role="write")
    world.refused(world.issuer.sign(world.claims()), 422, role="admin")


def test_a_thief_of_an_issued_token_has_minutes(world: World) -> None:
    world.rule(minutes=5)
    secret = world.issued()["secret"]
    world.clock.now += 299
    assert world.call("GET", "/v1/whoami", secret).status_code == 200
    world.clock.now += 2
    answer = world.call("GET", "/v1/whoami", secret)
    assert answer.status_code == 401 and "expired" in answer.text
    assert world.publish(secret).status_code == 401


def test_a_rule_that_is_removed_ends_its_tokens_and_no_others(world: World) -> None:
    rule, other = world.rule(), world.rule(namespace="other", label="other")
    secret = world.exchange(world.issuer.sign(world.claims()), namespace="team").json()["secret"]
    kept = world.exchange(world.issuer.sign(world.claims()), namespace="other").json()["secret"]
    assert world.call("GET", "/v1/whoami", secret).status_code == 200
    assert world.call("DELETE", f"/v1/publishers/{rule}", world.admin).status_code == 204
    answer = world.call("GET", "/v1/whoami", secret)
    assert answer.status_code == 401 and "revoked" in answer.text
    assert world.call("GET", "/v1/whoami", kept).status_code == 200
    world.refused(world.issuer.sign(world.claims()), 403, namespace="team")
    assert [row["publisher"] for row in world.call("GET", "/v1/publishers", world.admin).json()] == [other]
    assert world.call("DELETE", f"/v1/publishers/{rule}", world.admin).status_code == 404
    actions = [row["action"] for row in world.call("GET", "/v1/audit", world.admin).json()["rows"]]
    assert {"publisher.add", "publisher.remove"} <= set(actions)


TOO_WIDE: list[tuple[dict[str, Any], str]] = [
    ({"claims": {"ref": "refs/heads/main"}}, "whose job"),
    ({"claims": {"repository": "*", "ref": "refs/heads/main"}}, "strangers"),
    ({"claims": {"repository": "org/app*", "ref": "refs/heads/main"}}, "strangers"),
    ({"claims": {"repository": "org*", "ref": "refs/heads/main"}}, "strangers"),
    ({"claims": {"sub": "repo:*"}}, "strangers"),
    ({"claims": {"repository": "org/app"}}, "any branch"),
    ({"claims": {"repository": "org/app", "ref": "*"}}, "any branch"),
    ({"claims": {"repository": "o*g/app", "ref": "x"}}, "at its end"),
    ({"issuer": "https://*.example"}, "issuer"),
    ({"issuer": "https://user@host"}, "issuer"),
    ({"issuer": "http://issuer.example"}, "plain HTTP"),
    ({"minutes": 61}, "minutes"),
    ({"minutes": 0}, "minutes"),
    ({"role": "admin"}, "role"),
    ({"lane": "pr-{number}-{number}"}, "lane"),
    ({"namespace": "*"}, "namespace"),
]


def test_an_operator_s_rule_that_is_too_wide_is_refused(world: World) -> None:
    for changed, word in TOO_WIDE:
        answer = world.add(**changed)
        assert answer.status_code == 422 and word in answer.text, (changed, answer.text)
    assert world.call("GET", "/v1/publishers", world.admin).json() == []


def test_an_admin_of_another_namespace_makes_and_sees_no_rule(world: World) -> None:
    rule = world.rule()
    request = {"label": "other", "role": "admin", "namespace": "other"}
    other = world.call("POST", "/v1/tokens", world.admin, json=request).json()["secret"]
    writer = world.issued()["secret"]
    body = {"issuer": "https://issuer.example", "audience": AUDIENCE, "claims": MAIN, "namespace": "team"}
    for token in (other, writer):
        assert world.call("POST", "/v1/publishers", token, json=body).status_code == 403
        assert world.call("DELETE", f"/v1/publishers/{rule}", token).status_code in (403, 404)
    assert world.call("GET", "/v1/publishers", other).json() == []
    assert world.call("GET", "/v1/publishers", writer).status_code == 403
    # A rule for an issuer on the registry's own machine makes the registry ask a server there.
    local = {**body, "issuer": world.issuer.url, "namespace": "other"}
    assert world.call("POST", "/v1/publishers", other, json=local).status_code == 403
    assert world.call("POST", "/v1/publishers", other, json={**body, "namespace": "other"}).status_code == 201
