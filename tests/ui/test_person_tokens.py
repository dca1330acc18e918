"""Which tokens of an identity provider count as a login: all for this registry and of now, none forged."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from registry_making import ok

from cachesvc.domain.retention import DAY
from tests.security.issuer import Issuer

from .person import fails, log_in
from .provider import CLIENT_ID, Provider
from .site import Site


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "no issuer"),
        ({"aud": "other"}, "for another service"),
        ({"aud": None}, "for another service"),
        ({"aud": [], "azp": CLIENT_ID}, "for another service"),
        ({"aud": CLIENT_ID[:-1]}, "for another service"),
        ({"aud": {CLIENT_ID: 1}}, "for another service"),
        ({"aud": [CLIENT_ID, "other"]}, "given to another service"),
        ({"aud": [CLIENT_ID, "other"], "azp": "other"}, "given to another service"),
        ({"azp": "other"}, "given to another service"),
        ({"exp": -61}, "has expired"),
        ({"exp": None}, "when it expires"),
        ({"exp": "tomorrow"}, "not a time"),
        ({"iat": 62}, "not valid yet"),
        ({"nbf": 62}, "not valid yet"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
        ({"sub": 7}, "names nobody"),
        ({"sub": "a" * 256}, "names nobody"),
        ({"sub": "ada\nbob"}, "names nobody"),
    ],
)
def test_a_token_that_is_not_for_this_registry_and_now_opens_nothing(
    shared_site: Site, provider: Provider, claims: dict[str, Any], words: str
) -> None:
    now = int(shared_site.inside.clock())
    times = ("exp", "iat", "nbf")
    provider.claims = {
        name: now + value if name in times and isinstance(value, int) else value
        for name, value in claims.items()
    }
    fails(shared_site, provider, 401, words)


def test_a_token_that_only_looks_strange_counts(shared_site: Site, provider: Provider) -> None:
    now = int(shared_site.inside.clock())
    for claims in (
        {"aud": [CLIENT_ID]},
        {"aud": [CLIENT_ID, "other"], "azp": CLIENT_ID},
        {"exp": now - 50},
        {"exp": now + 40 * DAY},
    ):
        provider.claims = claims
        log_in(shared_site, provider, "bob")
    provider.claims = {}
    provider.token = lambda claims: provider.issuer.sign(claims, "two")
    log_in(shared_site, provider, "bob")


def test_a_forger_of_tokens_opens_nothing(shared_site: Site, provider: Provider) -> None:
    issuer = provider.issuer
    public = issuer.keys["one"][1].as_pem(private=False)
    forger = Issuer(issuer.url)
    forger.add_key("one", "RS256")

    def altered(claims: dict[str, Any]) -> str:
        head, _, signature = issuer.sign({**claims, "sub": "bob"}).split(".")
        body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
        return f"{head}.{body}.{signature}"

    for make, words in (
        (issuer.unsigned, "algorithm 'none'"),
        (lambda claims: issuer.signed_by_hmac(claims, public), "algorithm 'HS256'"),
        (forger.sign, "not by a key of issuer"),
        (altered, "not by a key of issuer"),
        (lambda claims: issuer.sign(claims, kid="three"), "has no key"),
        (lambda claims: issuer.sign(claims, typ="logout+jwt"), "not JWT"),
        (lambda _: "no token", "a JSON Web Token with"),
    ):
        provider.token = make
        fails(shared_site, provider, 401, words)


def test_a_job_s_token_logs_nobody_in_and_a_person_s_token_is_no_job_s(
    shared_site: Site, provider: Provider
) -> None:
    """One provider may give both. What a job has is for no login of a browser, and what a person has is for
    the page alone, also where a rule names the person."""
    job = {"aud": shared_site.url, "sub": "repo:org/app", "nonce": None, "name": None}
    for audience, words in (
        (shared_site.url, "for another service"),
        ([CLIENT_ID, shared_site.url], "given to another service"),
        (CLIENT_ID, "token is of another login"),
    ):
        provider.claims = {**job, "aud": audience}
        fails(shared_site, provider, 401, words)
    provider.claims = {}
    log_in(shared_site, provider, "bob")
    token = provider.tokens_given[-1]
    rule = {"issuer": provider.issuer.url, "audience": shared_site.url, "claims": {"sub": "bob"}}
    admin = {"Authorization": f"Bearer {shared_site.secrets['admin']}"}
    with httpx.Client(base_url=shared_site.url, trust_env=False) as http:
        made = ok(http.post("/v1/publishers", json={**rule, "namespace": "team"}, headers=admin))
        answer = http.post("/v1/oidc/token", json={"token": token})
        assert answer.status_code in (401, 403) and "csv_" not in answer.text, answer.text
        ok(http.delete(f"/v1/publishers/{made['publisher']}", headers=admin))
