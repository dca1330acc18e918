"""Decide whose identity a build has: what the verified token of a CI job says, and nothing else.

A revision names its builder. Anybody could type a name, so a registry accepts the name of a CI job only from
that job, and everybody else's builder is ``cachesvc:local``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from cachesvc_client.wire.errors import Untrusted
from cachesvc_client.wire.manifest.provenance import LOCAL_BUILDER, SOURCE, BuilderIdentity, Provenance

from .publishers import is_pull_request, pull_number

GITHUB_ISSUER = "https://token.actions.githubusercontent.com"
"""Issuer of the tokens of GitHub's jobs; an enterprise may have a path after it."""
_ENTERPRISE_SERVER = "/_services/token"
"""End of the issuer of a GitHub Enterprise Server, after the server's address."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HINT = "warm it in the CI job that the provenance names, with --oidc, or without one: cachesvc warm"


def identity_of(issuer: str, subject: str, claims: Mapping[str, object]) -> BuilderIdentity | None:
    """Return the identity of a job by the claims of its verified token; ``None`` if they make no URI."""
    host = _host(issuer)
    try:
        for claim, runs in (("repository", _github_run), ("project_path", _gitlab_run)):
            repository = _quoted(claims, claim)
            if repository:
                place, ref = f"{host}/{repository}", _ref(claims)
                return BuilderIdentity(
                    builder=_workflow(host, repository, claims, ref),
                    source=f"git+{place}@{ref}" if ref else f"git+{place}",
                    commit=_commit(claims),
                    invocation=runs(place, claims),
                )
        return BuilderIdentity(builder=f"{issuer}#{quote(subject, safe=_SAFE)}")
    except ValueError:
        return None


def demand_identity(provenance: Provenance, identity: BuilderIdentity | None) -> None:
    """Raise ``Untrusted`` unless the build is that of the job to which a token was given.

    ``identity``: the job's; ``None`` for a token that was given to no job.
    """
    if not provenance.vouched:
        if provenance.source is not None:
            raise Untrusted(f"provenance: {LOCAL_BUILDER} names a {SOURCE}, for which nobody vouches", _HINT)
        return
    if identity is None:
        raise Untrusted(
            f"provenance: it names the builder {provenance.builder}, and this token is no job's", _HINT
        )
    source = provenance.source
    uri, commit = (source.uri, source.commit) if source else ("", "")
    pairs = (
        ("builder", provenance.builder, identity.builder),
        ("source", uri, identity.source),
        ("commit", commit, identity.commit),
        ("run", provenance.invocation, identity.invocation or provenance.invocation),
    )
    for what, stated, verified in pairs:
        if stated != verified:
            raise Untrusted(
                f"provenance: its {what} is {stated or 'missing'}; this token was given to "
                f"{verified or 'a job without one'}",
                _HINT,
            )


_SAFE = "/:@._~+-"
"""Characters of a claim that stand in a URI as they are; the others are encoded, so that no two are alike."""


def _host(issuer: str) -> str:
    """Return the address below which a job's repository is. An issuer speaks for its own host alone."""
    if issuer == GITHUB_ISSUER or issuer.startswith(GITHUB_ISSUER + "/"):
        return "https://github.com"
    return issuer.removesuffix(_ENTERPRISE_SERVER).rstrip("/")


def _workflow(host: str, repository: str, claims: Mapping[str, object], ref: str) -> str:
    """Return the URI of the workflow that was started; of a reusable workflow it is the caller's."""
    path = _quoted(claims, "workflow_ref").partition("@")[0]
    if not path.startswith(f"{repository}/"):
        path = repository
    return f"{host}/{path}@{ref}" if ref else f"{host}/{path}"


def _ref(claims: Mapping[str, object]) -> str:
    """Return the ref of a job. A pull request's job never has the ref of a branch, whatever its claims say:
    in GitHub's event ``pull_request_target`` the claim is the branch that the request goes to."""
    if is_pull_request(claims):
        return f"refs/pull/{pull_number(claims) or 'unknown'}"
    ref = _quoted(claims, "ref_path") or _quoted(claims, "ref")
    return ref if ref.startswith("refs/") else ""


def _commit(claims: Mapping[str, object]) -> str:
    commit = str(claims.get("sha", ""))
    return commit if _COMMIT.fullmatch(commit) else ""


def _github_run(place: str, claims: Mapping[str, object]) -> str:
    run, attempt = _quoted(claims, "run_id"), _quoted(claims, "run_attempt") or "1"
    return f"{place}/actions/runs/{run}/attempts/{attempt}" if run else ""


def _gitlab_run(place: str, claims: Mapping[str, object]) -> str:
    job = _quoted(claims, "job_id")
    return f"{place}/-/jobs/{job}" if job else ""


def _quoted(claims: Mapping[str, object], name: str) -> str:
    value = claims.get(name, "")
    return quote(str(value), safe=_SAFE) if isinstance(value, (str, int)) else ""
