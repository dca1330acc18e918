"""``python -m tools.json_page``: writes docs/reference/json.md and docs/reference/json.schema.json, the JSON
that commands print, from the types of their answers.

``make pages`` runs it, and a test fails if a file is not what the code says.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from cachesvc.blobs.testing import Verdict
from cachesvc.cli.admin.republish import Republished
from cachesvc.cli.admin.transfer import Transferred
from cachesvc.cli.admin.trust.show import TrustRow
from cachesvc.cli.admin.upkeep import Collected
from cachesvc.cli.bundles import PushedRevision
from cachesvc.cli.oci.mcv import ImportedImage
from cachesvc.cli.oci.transfer import ReceivedBundle, SentBundle
from cachesvc.queries.coverage import Coverage
from cachesvc.queries.inventory import ShownEntry, ShownName
from cachesvc.registry.upkeep.backup import BackupPart
from cachesvc.schema.access import AuditRecord, SignerRecord, TokenAnswer
from cachesvc.schema.entries import (
    Descendant,
    EntryRecord,
    ProvenanceRecord,
    RevisionDifference,
    RevisionRecord,
    Withheld,
)
from cachesvc.schema.namespaces import BY_DEFAULT, UNLIMITED, NamespaceRecord, Policy
from cachesvc.schema.publishers import PublisherRecord
from cachesvc.schema.revocations import Revocation, RevokedSigner
from cachesvc.schema.upkeep import ColdForecast, Finding, Removal, Stats
from cachesvc.schema.wanted import Miss
from cachesvc.schema.webhooks import DeliveryOutcome, WebhookRecord
from cachesvc.warm.missing import FORMAT as MISSING_FORMAT
from cachesvc.warm.report.env_matrix import MATRIX_FORMAT
from cachesvc.warm.report.render import FORMAT as WARM_FORMAT
from cachesvc.warm.report.render import PLAN_FORMAT
from cachesvc_client.commands.doctor import Check
from cachesvc_client.commands.stats import NameStarts, StartRecord
from cachesvc_client.console.documents import (
    ERROR_FORMAT,
    RENAMED,
    TIMES,
    UNITS,
    format_of,
)
from cachesvc_client.hooks.lookup import Presence
from cachesvc_client.hooks.table import Hook
from cachesvc_client.node.usage import PartUsage
from cachesvc_client.queries.explain import Explanation
from cachesvc_client.queries.provenance import ProvenanceRow
from cachesvc_client.queries.pull import PulledBundle
from cachesvc_client.wire.digest import Digest
from cachesvc_client.wire.factors import FactorValue
from cachesvc_client.wire.manifest.proof import Proof
from cachesvc_client.wire.requests.protocol import EnvironmentUse, NameSummary, WhoAmI
from cachesvc_client.wire.requests.reports import STATES
from tools.markdown import DOCS, generated, table

PAGE = DOCS / "reference" / "json.md"
SCHEMA = DOCS / "reference" / "json.schema.json"

TIME = {"type": "string", "format": "date-time"}
"""A time of UTC."""
_STEP = {"step": str, "what": str}
_ERROR = {"code": str, "message": str, "hint": str, "exit_status": int}


class _Time(str):
    """Stands for a time in a mapping of fields."""


_VERIFIED = {
    **dict.fromkeys(("what", "name", "target"), str),
    **dict.fromkeys(("entry", "revision"), Digest),
    "signer": str,
    "trusted_for": str,
    "signed": _Time | None,
    "pack_bytes": int,
    "file_count": int,
    "bytes": str,
    "lane": str | None,
    "expires": _Time | None,
    "require": str | None,
    "delegated_by": str | None,
    "statement": dict[str, Any] | None,
    "proof": Proof | None,
}

_RELEASE = {
    **dict.fromkeys(("what", "signer"), str),
    "files": [str],
    "absent": [str],
    "statement": dict[str, Any],
}


def _rows(row: Any) -> dict[str, Any]:
    return {"rows": [row]}


def _plan(row: Any, **more: Any) -> dict[str, Any]:
    return {"applied": bool, "summary": str, "rows": [row], **more}


_BACKUP = {"digest": Digest, "created": _Time, "schema": str, "keys": [str]}
_TRUST_PLAN = _plan(TrustRow)
ANSWERS: dict[str, Any] = {
    "whoami": {"registry": str, "": WhoAmI},
    "ls": _rows(NameSummary),
    "ls entries": _rows(EntryRecord),
    "search": _rows(EntryRecord),
    "misses": _rows(Miss),
    "show": ShownName,
    "show entry": ShownEntry,
    "doctor": {"ok": bool, "checks": [Check], "fingerprint": dict[str, FactorValue]},
    "doctor hooks": _rows({"presence": Presence, "": Hook}),
    "explain": Explanation,
    "explain provenance": _rows({"": ProvenanceRow, "-": "provenance"}),
    "coverage": {"passed": bool, "": Coverage},
    "environment": {"label": str, "fingerprint": dict[str, FactorValue]},
    "pull": _rows(PulledBundle),
    "push": {"rows": [PushedRevision], "refused": [{"path": str, **_ERROR}]},
    "verify": {"rows": [_VERIFIED], "refused": [_ERROR]},
    "verify release": {"rows": [_RELEASE], "refused": [_ERROR]},
    "oci push": _rows(SentBundle),
    "oci pull": _rows(ReceivedBundle),
    "oci pull mcv": ImportedImage,
    "oci export": _rows(SentBundle),
    "oci import": _rows(ReceivedBundle),
    "oci import mcv": ImportedImage,
    "stats": {
        "folder": str,
        "days": int,
        "rows": [NameStarts],
        "last_compiled": StartRecord | None,
        "last_traced": StartRecord | None,
    },
    "cache size": {"folder": str, "bound_bytes": int, "bytes": int, "parts": [PartUsage]},
    "admin tokens create": TokenAnswer,
    "admin tokens list": _rows(TokenAnswer),
    "admin tokens revoke": _plan(TokenAnswer),
    "admin tokens expire": _plan(TokenAnswer),
    "admin tokens rotate": _plan(TokenAnswer),
    "admin namespaces list": _rows(NamespaceRecord),
    "admin namespaces show": {"namespace": NamespaceRecord, "signers": [SignerRecord]},
    "admin namespaces set": NamespaceRecord,
    "admin audit": _rows(AuditRecord),
    "admin signers list": {"rows": [SignerRecord], "revoked": [RevokedSigner]},
    "admin signers add": SignerRecord,
    "admin signers remove": _plan(SignerRecord),
    "admin signers revoke": {"applied": bool, "summary": str, "revocation": Revocation},
    "admin publishers add": PublisherRecord,
    "admin publishers list": _rows(PublisherRecord),
    "admin publishers remove": _plan(PublisherRecord),
    "admin names list": _rows(NameSummary),
    "admin entries list": _rows(EntryRecord),
    "admin entries show": ShownEntry,
    "admin entries delete": _plan(EntryRecord, refused=[{"entry": str, **_ERROR}]),
    "admin revisions list": _rows(RevisionRecord),
    "admin revisions show": {"": RevisionRecord, "provenance": ProvenanceRecord},
    "admin revisions diff": RevisionDifference,
    "admin revisions pin": RevisionRecord,
    "admin revisions unpin": RevisionRecord,
    "admin revisions delete": _plan(RevisionRecord),
    "admin revisions rollback": _plan(Republished),
    "admin quarantine list": _rows(Withheld),
    "admin quarantine set": _plan(RevisionRecord, descendants=[Descendant]),
    "admin quarantine release": RevisionRecord,
    "admin trust show": _rows(TrustRow),
    "admin trust init": _TRUST_PLAN,
    "admin trust rotate-root": _TRUST_PLAN,
    "admin trust rotate-online": _TRUST_PLAN,
    "admin trust delegate": _TRUST_PLAN,
    "admin trust revoke": _TRUST_PLAN,
    "admin trust max-age": _TRUST_PLAN,
    "admin trust renew": _TRUST_PLAN,
    "admin trust sign": _TRUST_PLAN,
    "admin trust put": _TRUST_PLAN,
    "admin stats": Stats,
    "admin gc": _plan(
        Removal,
        revisions=int,
        bytes=int,
        objects=int,
        collected=Collected | None,
        cold=[ColdForecast],
        going_cold=int,
        cold_days=int,
        kept=str,
    ),
    "admin fsck": _plan(Finding, checked=int, repaired=int),
    "admin migrate": _plan(_STEP),
    "admin doctor": _plan(Verdict),
    "admin tag": _plan(Republished),
    "admin export": _plan(Transferred),
    "admin import": _plan(Transferred),
    "admin webhooks add": WebhookRecord,
    "admin webhooks list": _rows(WebhookRecord),
    "admin webhooks test": DeliveryOutcome,
    "admin webhooks remove": _plan(WebhookRecord),
    "admin backup": _plan(BackupPart, **_BACKUP),
    "admin restore": _plan(BackupPart, **_BACKUP),
}
"""The fields of the answer of each command. A list stands for many of its item; the key ``""`` for the fields
of a record that stand beside the others, and ``-`` for one of them that is omitted."""

WARM = {
    "warm": WARM_FORMAT,
    "warm --dry-run": PLAN_FORMAT,
    "warm --env-matrix": MATRIX_FORMAT,
    "warm --missing --dry-run": MISSING_FORMAT,
}
"""The answers of `cachesvc warm`, which [another page](../warm.md) describes."""

HEAD = f"""\
# JSON of the commands

{generated("the types of the answers")}

Every command that lists, shows or changes something has `--json`; listings of `cachesvc admin` have
`-o json` too. Both programs print the same form.

- An answer is one object on stdout. Its `format` is the command and the version of the answer, such as
  `cachesvc.admin.tokens.list/1`. A field may be added without a new version. A field that is renamed,
  removed or gets another meaning makes a new one: until cachesvc 1.0 any release may do that, and the
  changelog says so.
- A listing has its items in `rows`, also when there are none. A command with `--apply` has `applied`, a
  `summary` for people, and `rows`.
- Every field is always there. What is not known, or does not apply, is `null`.
- Times are texts of ISO 8601 in UTC: `2026-11-24T23:24:13Z`. Seconds and bytes have their unit in the name
  of the field, such as `saved_seconds`; `bytes` alone is a number of bytes.
- A bound of a namespace is a number, `"none"` (no bound) or `"default"` (the registry's settings).
- An error is one line of JSON, the last one on stderr, and stdout has no answer. `cachesvc warm` prints the
  error on stdout too, since `warm-report` reads what CI keeps of it. Where only some of several things
  failed, the answer is on stdout, and its `refused` has the errors.

```json
{{
 "format": "{ERROR_FORMAT}",
 "error": {{"code": "not_found", "message": "…", "hint": "…", "exit_status": 4}}
}}
```

`code` and `exit_status` decide ([the codes](exit-codes.md)); `message` and `hint` are for people.

[The JSON Schema of all answers](json.schema.json) (draft 2020-12) has one definition for each `format`.
The reports of `cachesvc warm --json`, which `warm-report --json` gives again, are
[on their page](../warm.md): {", ".join(f"`{name}`" for name in WARM.values())}.
"""


class _Schemas:
    """Makes JSON Schemas from types. ``definitions``: one for each record that was met, by its name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:
        """The schema of a type, of a list of one, or of a mapping of fields."""
        if isinstance(hint, list):
            return {"type": "array", "items": self.of(hint[0])}
        if isinstance(hint, Mapping):
            return self._object(dict(self._fields(hint)))
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is _Time:
            return TIME
        if hint is Any:
            return {}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(one) for one in arguments]}
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in (list, tuple):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if dataclasses.is_dataclass(hint):
            return self._record(hint)
        return {"type": _plain_type(hint)}

    def fields(self, record: Any, without: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """The fields of a record, as `documents.present` writes them."""
        hints = typing.get_type_hints(record)
        for field in dataclasses.fields(record):
            name, hint = field.name, hints[field.name]
            kinds = set(typing.get_args(hint)) or {hint}
            if (record is EnvironmentUse and name in STATES) or name == without:
                continue
            if record is Policy:
                yield name, {"anyOf": [{"type": "integer"}, {"enum": [UNLIMITED, BY_DEFAULT]}]}
            elif name in TIMES and int in kinds:
                yield name, {"anyOf": [TIME, {"type": "null"}]}
            elif name in UNITS and (kinds & {int, float} or name == "measured"):
                yield UNITS[name], self.of(hint)
            else:
                yield RENAMED.get(name, name), self.of(hint)
        if record is EnvironmentUse:
            yield "starts", self.of(dict.fromkeys(STATES, int))

    def _fields(self, body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, hint in body.items():
            if name == "":
                yield from self.fields(hint, body.get("-", ""))
            elif name != "-":
                yield name, self.of(hint)

    def name_of(self, record: Any) -> str:
        """The name of a record, which is then among the definitions."""
        return str(self._record(record)["$ref"].rpartition("/")[2])

    def _record(self, record: Any) -> dict[str, Any]:
        name = record.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a record may hold its own type
            about = " ".join((record.__doc__ or "").split())
            self.definitions[name] = {"description": about, **self._object(dict(self.fields(record)))}
        return {"$ref": f"#/$defs/{name}"}

    @staticmethod
    def _object(properties: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "properties": properties, "required": [*properties]}


def _plain_type(hint: Any) -> str:
    named = {bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}
    if hint in named:
        return named[hint]
    assert isinstance(hint, type) and issubclass(hint, (str, PurePath)), hint
    return "string"


def schema() -> dict[str, Any]:
    """The JSON Schema of all answers: a definition for each format, and for each record in them."""
    schemas = _Schemas()
    answers: dict[str, Any] = {}
    for command, body in ANSWERS.items():
        fields = (
            schemas.definitions[schemas.name_of(body)]["properties"]
            if isinstance(body, type)
            else (schemas.of(body)["properties"])
        )
        properties = {"format": {"const": format_of(command)}, **fields}
        answers[format_of(command)] = schemas._object(properties)
    error = {"format": {"const": ERROR_FORMAT}, "error": schemas.of(_ERROR)}
    answers[ERROR_FORMAT] = schemas._object(error)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The JSON that the commands of cachesvc print",
        "oneOf": [{"$ref": f"#/$defs/{name.replace('/', '~1')}"} for name in answers],
        "$defs": {**answers, **schemas.definitions},
    }


def render() -> str:
    """The whole page."""
    lines = [HEAD, "## Answers\n"]
    whole = schema()["$defs"]
    rows = []
    for command, body in ANSWERS.items():
        name = format_of(command)
        fields = _names(whole[name]).removeprefix("`format`, ")
        rows.append((f"`{name}`", f"those of {body.__name__}" if isinstance(body, type) else fields))
    lines += table(("format", "fields"), rows)
    lines += ["\n## Records\n"]
    records = [(name, one) for name, one in whole.items() if "/" not in name]
    lines += table(("record", "fields"), [(name, _names(one)) for name, one in records])
    return "\n".join(lines) + "\n"


def _names(one: dict[str, Any]) -> str:
    return ", ".join(f"`{field}`{_items(item)}" for field, item in one["properties"].items())


def _items(one: dict[str, Any]) -> str:
    """The record that a field holds, or holds many of."""
    inner = one.get("items", one)
    options = [inner, *inner.get("anyOf", ())]
    names = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
    return f" ({'many ' if 'items' in one else ''}{names[0]})" if names else ""


def render_schema() -> str:
    """The whole schema file."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
    SCHEMA.write_text(render_schema())
