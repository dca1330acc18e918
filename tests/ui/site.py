"""A registry in this process with names, entries, starts and hostile texts, and a browser without scripts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
from registry_inside import EMBEDDED, ROOT, START, Clock, Column, Inside, inside
from registry_making import FINGERPRINT, Publication, make

from benchmarks.serving import serving
from cachesvc.registry import reports
from cachesvc.registry.access import tokens
from cachesvc.registry.trust import signers
from cachesvc.registry.upkeep import quarantine
from cachesvc.schema.access import SignerRecord, TokenAnswer, TokenRequest
from cachesvc_client.bundle.seal import SigningKey
from cachesvc_client.wire.names import Namespace
from cachesvc_client.wire.requests.reports import ReportRequest, RevisionReport

HOSTILE = "<script>alert('1')</script>\"'><img src=x onerror=alert(1)>&amp;"
"""A text that a page must show as it is: it ends an attribute, begins a script, and looks escaped already."""
H200 = {"gpu": "NVIDIA H200", "gpu_capability": "9.0", "cuda": "13.0"}
A100 = {"gpu": "NVIDIA A100-SXM4-80GB", "gpu_capability": "8.0", "cuda": "13.0"}


@dataclass
class Site:
    """A served registry, with the secrets of some tokens by what they are for."""

    inside: Inside
    url: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    published: dict[str, Publication] = field(default_factory=dict)

    def token(
        self, what: str, role: str, namespace: str, lane: str | None = None, label: str = "", days: int = 30
    ) -> TokenAnswer:
        """Create a token, and remember its secret and id as ``what``."""
        request = TokenRequest(label or what, role, namespace, lane, days=days)
        answer = tokens.create_token(self.inside.registry, None, request)
        self.secrets[what], self.tokens[what] = answer.secret, answer.token
        return answer

    def publish(self, what: str, **more: Any) -> Publication:
        """Publish an entry, and remember it as ``what``."""
        publication = make(self.inside.key, **more)
        self.inside.publish(publication)
        self.published[what] = publication
        return publication

    def last_used(self, what: str) -> int | None:
        """Return when the revision of an entry was last used, as the index has it."""
        with self.inside.registry.index.read() as unit:
            revision = unit.inventory.revision(self.published[what].revision)
        assert revision is not None
        return revision.last_used

    def start(self, what: str, node: str, state: str, token: str = "reporter", **more: Any) -> None:
        """Report a start with the entry ``what``, on a node of the builder's environment or of another
        ``fingerprint``."""
        publication = self.published[what]
        why = more.pop("why", "")
        request = ReportRequest(
            node=node * 32,
            fingerprint=more.pop("fingerprint", publication.manifest.fingerprint),
            revisions=(RevisionReport(publication.revision, state, **more),),
            why=(why,) if why else (),
        )
        with self.inside.registry.index.read() as unit:
            by = unit.tokens.get(self.tokens[token])
        reports.report(self.inside.registry, by, request)

    def browser(self, what: str | None = None) -> Browser:
        """Return a browser, logged in with the token ``what``."""
        browser = Browser(self.url)
        if what is not None:
            answer = browser.log_in(self.secrets[what])
            assert answer.status_code == 303, answer.text
        return browser


class Browser:
    """Follows no redirects and runs no scripts. Sends forms as a browser does: with their hidden fields."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.http.get(path, **more)

    def page(self, path: str) -> Page:
        """Return a page that must be there."""
        answer = self.get(path)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return Page(answer.text)

    def send(self, page: Page, action: str, **fields: str) -> httpx.Response:
        """Send the form of ``page`` with this action."""
        return self.http.post(action, data={**page.forms[action], **fields})

    def log_in(self, secret: str, address: str = "/ui/login") -> httpx.Response:
        return self.send(Page(self.get(address).text), "/ui/login", token=secret)


class Page(HTMLParser):
    """What a page says and holds: its elements with their attributes, its text, and its forms."""

    VOID = frozenset({"meta", "link", "input", "img", "br", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.forms: dict[str, dict[str, str]] = {}
        self._texts: list[str] = []
        self._open: list[str] = []
        self._action = ""
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        present = {name: value or "" for name, value in attributes}
        assert len(present) == len(attributes), (tag, attributes)
        self.elements.append((tag, present))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "form":
            self._action = present["action"]
            self.forms[self._action] = {}
        if tag == "input" and present.get("type") == "hidden":
            self.forms[self._action][present["name"]] = present["value"]

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        """All text of the page, in one line."""
        return re.sub(r"\s+", " ", "".join(self._texts))

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of each element with this tag."""
        return [attributes for one, attributes in self.elements if one == tag]

    @property
    def links(self) -> list[str]:
        return [attributes["href"] for attributes in self.all("a")]


@contextmanager
def site(
    folder: Path, contents: Callable[[Site], None] | None = None, column: Column = EMBEDDED
) -> Iterator[Site]:
    """Serve a registry with everything that the pages show, or with other ``contents``."""
    with inside(folder, SigningKey.generate(), Clock(), column=column) as reg:
        one = Site(reg)
        (contents or fill)(one)
        with serving(reg.registry, web_page=True) as url:
            one.url = url
            yield one


def fill(one: Site) -> None:
    """Publish, report and withhold, so that each page has rows of each kind."""
    for what, role, namespace, lane in (
        ("admin", "admin", "*", None),
        ("team admin", "admin", "team", None),
        ("reader", "read", "team", None),
        ("lane reader", "read", "team", "pr-1"),
        ("other reader", "read", "other", None),
        ("reporter", "report", "*", None),
        ("second reporter", "report", "*", None),
        ("revoked", "read", "team", None),
    ):
        one.token(what, role, namespace, lane)
    fill_llama(one)
    one.publish("tagged", name="bert", tag="v2")
    one.publish("lane 1", name="bert", lane="pr-1", target="bert/bf16")
    one.publish("lane 2", name="hidden", lane="pr-2", target="hidden/f32")
    one.publish("other", namespace="other", name="secret", target="secret/f32")
    one.publish("bert", name="bert", provenance={"commit": HOSTILE, "builder": "runner 7"})
    one.inside.publish(
        make(one.inside.key, name="bert", content=b"newer"), head=one.published["bert"].revision
    )
    one.publish("strange", name="strange", fingerprint={**FINGERPRINT, "gpu": HOSTILE})
    one.inside.clock.now += 7200
    report_starts(one, f"torch was built with {HOSTILE}")
    registry = one.inside.registry
    one.token("hostile", "read", "team", label=HOSTILE)
    quarantine.withdraw(registry, ROOT, one.published["tagged"].revision, HOSTILE)
    signers.add_signer(registry, ROOT, SignerRecord(Namespace("team"), SigningKey.generate().public, HOSTILE))
    tokens.revoke_token(registry, ROOT, one.tokens["revoked"])


def fill_llama(one: Site) -> None:
    """Publish a name with two targets on one kind of GPU, and an older model of one target on another."""
    measured = {"compile": 41.2, "first_call": 43.9, "steady": 0.0021, "eager_steady": 0.0034}
    shared = {"name": "llm/llama-8b", "scopes": ("gpu", "host")}
    on_h200, on_a100 = {**FINGERPRINT, **H200}, {**FINGERPRINT, **A100}
    for what, target, fingerprint, more in (
        ("old model", "prefill/bf16/default", on_a100, {"model": b"older", "sequence": 1_000}),
        ("llama", "prefill/bf16/default", on_h200, {}),
        ("decode", "decode/bf16/default", on_h200, {}),
    ):
        content = random.Random(what).randbytes(180_000)
        one.publish(
            what, target=target, fingerprint=fingerprint, content=content, measured=measured, **shared, **more
        )


def report_starts(one: Site, why: str) -> None:
    """Report hits, and then that one entry is inert on three hosts, so that it is withheld there."""
    for node in "abcdef":
        one.start("llama", node, "hit", saved=40.0)
    one.start("llama", "1", "unused")
    for node in "abc":
        one.start("decode", node, "hit", saved=38.5)
    for node, token in (("d", "reporter"), ("e", "reporter"), ("f", "second reporter")):
        one.start("decode", node, "inert", token, why=why)


__all__ = ["HOSTILE", "START", "Browser", "Page", "Site", "site"]
