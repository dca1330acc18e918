"""Whoever takes over a replica has its role of PostgreSQL: it reads and writes rows, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registry_making import Server, make, ok, refused

from cachesvc.bootstrap import migrate_index, open_registry
from cachesvc.index.rights import rights, sequences
from cachesvc.settings import read_settings
from cachesvc_client.wire.errors import Unavailable
from tests.conftest import new_database

pytestmark = pytest.mark.services
SQL = re.findall(
    r"```sql\n(.*?)```", (Path(__file__).parents[2] / "docs/operate.md").read_text("utf-8"), re.DOTALL
)
"""What an operator is told to run: before and after the migration."""


class Roles:
    """A database with both roles, as the documentation makes them."""

    def __init__(self, postgresql: str, folder: Path) -> None:
        self.superuser = new_database(postgresql)
        name, address = self.superuser.rpartition("/")[2], postgresql.partition("@")[2]
        self.owner, self.serving = f"owner_{name}", f"serve_{name}"
        self.owner_url, self.url = (
            f"postgresql://{role}:secret@{address}/{name}" for role in (self.owner, self.serving)
        )
        before, after = (
            sql.replace("cachesvc_owner", self.owner)
            .replace("cachesvc_serve", self.serving)
            .replace("DATABASE cachesvc", f"DATABASE {name}")
            .replace("…", "secret")
            for sql in SQL
        )
        self.run(before)
        migrate_index(read_settings(data=folder, database=self.owner_url), apply=True)
        self.run(after, self.owner_url)

    def run(self, sql: str, url: str = "") -> list[Any]:
        import psycopg

        with psycopg.connect(url or self.superuser, autocommit=True) as connection:
            cursor = connection.execute(sql)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def roles(postgresql: str, tmp_path_factory: pytest.TempPathFactory) -> Roles:
    return Roles(postgresql, tmp_path_factory.mktemp("migration"))


@pytest.fixture(scope="module")
def server(roles: Roles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A registry that serves with the role that may do nothing to the schema."""
    serving = {"CACHESVC_SERVER_DATABASE": roles.url}
    with Server(tmp_path_factory.mktemp("registry") / "data", env=serving).running() as running:
        yield running


def test_the_role_that_serves_is_enough_for_a_registry(server: Server) -> None:
    """It publishes, replaces, answers, reports, withholds, collects, and forgets a token."""
    api = server.api()
    assert ok(api.http.get("/readyz"))["ready"]
    first, second = make(server.key), make(server.key, content=b"better")
    ok(api.publish(first))
    ok(api.bundle(second, first.revision))
    assert [row["revision"] for row in ok(api.resolve())["revisions"]] == [second.revision]
    path = f"/v1/revisions/{second.revision}/quarantine"
    ok(api.http.put(path, json={"why": "a test"}))
    ok(api.http.delete(path))
    body = {"label": "reader", "role": "read", "namespace": "team", "days": 1}
    token = ok(api.http.post("/v1/tokens", json=body))
    assert server.api(token["secret"]).resolve().status_code == 200
    ok(api.http.delete(f"/v1/tokens/{token['token']}"))
    ok(api.http.post("/v1/gc"))
    ok(api.http.delete(f"/v1/entries/{second.manifest.entry}"))
    ok(api.http.post("/v1/gc"))
    ok(api.http.post("/v1/fsck"))
    refused(api.resolve(), 404, "not_found")
    assert len(ok(api.http.get("/v1/audit"))["rows"]) > 3


FORBIDDEN = (
    "DROP TABLE tokens",
    "ALTER TABLE tokens DROP COLUMN revoked",
    "ALTER TABLE audit DISABLE TRIGGER ALL",
    "TRUNCATE audit",
    "UPDATE audit SET by = 'somebody else'",
    "DELETE FROM audit",
    "DELETE FROM audit WHERE id = 1",
    "INSERT INTO audit SELECT * FROM audit ON CONFLICT (id) DO UPDATE SET by = 'somebody else'",
    "MERGE INTO audit USING (SELECT 1) AS one ON true WHEN MATCHED THEN DELETE",
    "SELECT * FROM audit FOR UPDATE",
    "BEGIN; LOCK TABLE audit IN ACCESS EXCLUSIVE MODE",
    "COPY audit FROM '/etc/passwd'",
    "ALTER TABLE audit OWNER TO CURRENT_USER",
    "CREATE RULE mine AS ON INSERT TO audit DO INSTEAD NOTHING",
    "CREATE POLICY mine ON audit USING (true)",
    "COMMENT ON TABLE audit IS 'mine'",
    "CREATE EXTENSION dblink",
    "SELECT rolpassword FROM pg_authid",
    "SELECT lo_export(1, '/tmp/mine')",
    "CREATE PUBLICATION mine FOR ALL TABLES",
    "ALTER SYSTEM SET archive_command = 'true'",
    "SET session_replication_role = replica",
    "GRANT {owner} TO CURRENT_USER",
    "REASSIGN OWNED BY {owner} TO CURRENT_USER",
    "UPDATE alembic_version SET version_num = '9999'",
    "DELETE FROM alembic_version",
    "CREATE TABLE mine (one int)",
    "CREATE TEMPORARY TABLE tokens (token text)",
    "CREATE FUNCTION public.lower(text) RETURNS text LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    "CREATE INDEX mine ON tokens (token)",
    "CREATE TRIGGER mine BEFORE DELETE ON tokens EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE ROLE mine SUPERUSER",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "SET ROLE {owner}",
    "SET SESSION AUTHORIZATION {owner}",
    "ALTER DATABASE {database} SET search_path = mine",
    "SELECT setval('audit_id_seq', 1)",
    "COPY tokens TO PROGRAM 'cat'",
    "SELECT pg_read_file('/etc/passwd')",
)


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_the_role_that_serves_changes_no_schema_and_no_history(roles: Roles, sql: str) -> None:
    import psycopg

    database = roles.superuser.rpartition("/")[2]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        roles.run(sql.format(owner=roles.owner, database=database), roles.url)


def test_each_role_is_enough_for_its_commands(postgresql: str, tmp_path: Path) -> None:
    """And old lines of the audit log go by the owner's hand alone."""
    (tmp_path / "migration").mkdir()
    roles = Roles(postgresql, tmp_path / "migration")
    with Server(tmp_path / "data", env={"CACHESVC_SERVER_DATABASE": roles.url}).running() as server:
        ok(server.api().publish(make(server.key, name="kept")))

    def admin(url: str, *words: object, status: int = 0) -> str:
        command = [sys.executable, "-m", "cachesvc", "admin", "--local", "--data", str(server.data)]
        environ = {**os.environ, "CACHESVC_SERVER_DATABASE": url}
        done = subprocess.run([*command, *map(str, words)], env=environ, capture_output=True, text=True)
        assert done.returncode == status, (words, done.stderr)
        return done.stdout + done.stderr

    def old_lines() -> int:
        return roles.run("SELECT count(*) FROM audit WHERE at < 1000")[0][0]

    roles.run("INSERT INTO audit SELECT -1, 7, 'x', 'x', 'x', 'x', '{}'", roles.owner_url)
    serving = (
        ("backup", tmp_path / "backup"),
        ("gc", "--apply"),
        ("fsck",),
        ("doctor",),
        ("migrate",),
        ("tokens", "create", "--label", "x", "--role", "read", "-n", "team"),
        ("audit",),
    )
    for words in serving:
        assert "permission denied" not in admin(roles.url, *words), words
    assert old_lines() == 1
    admin(roles.owner_url, "migrate", "--apply")
    admin(roles.owner_url, "gc", "--apply")
    assert old_lines() == 0


def test_a_start_names_the_right_that_its_role_lacks(roles: Roles, tmp_path: Path) -> None:
    """Whichever it is; and the hint is what the owner runs."""

    def starts() -> str:
        try:
            with open_registry(read_settings(data=tmp_path, database=roles.url)):
                return ""
        except Unavailable as error:
            assert "\n" not in str(error) and "secret" not in str(error)
            assert error.hint and error.hint.startswith("as the owner of the tables: ")
            roles.run(error.hint.partition(": ")[2], roles.owner_url)
            return str(error)

    assert starts() == ""
    pairs = rights()
    for table, right in (pairs[0], pairs[1], pairs[len(pairs) // 2], pairs[-1], ("audit", "INSERT")):
        roles.run(f"REVOKE {right} ON {table} FROM {roles.serving}", roles.owner_url)
        assert f"role {roles.serving} lacks {right} on table {table}" in starts()
    roles.run(f"REVOKE USAGE ON SEQUENCE audit_id_seq FROM {roles.serving}", roles.owner_url)
    assert "lacks USAGE on sequence audit_id_seq" in starts()
    roles.run(f"REVOKE SELECT, DELETE ON tokens, entries FROM {roles.serving}", roles.owner_url)
    assert "and 3 more rights" in starts()
    assert len([starts() for _ in range(4)]) == 4 and starts() == ""


def test_no_sequence_is_forgotten(roles: Roles) -> None:
    found = roles.run("SELECT sequencename FROM pg_sequences WHERE schemaname = 'public'")
    assert sorted(row[0] for row in found) == sorted(sequences())


def test_a_start_that_would_have_to_migrate_says_who_may(
    postgresql: str, roles: Roles, tmp_path: Path
) -> None:
    """The role of one database serves no other, and makes no schema in one that lets it in."""
    database = new_database(postgresql)
    url = f"{roles.url.rpartition('/')[0]}/{database.rpartition('/')[2]}"
    settings = read_settings(data=tmp_path, database=url)
    with (
        pytest.raises(Unavailable, match="permission denied for schema public") as caught,
        open_registry(settings),
    ):
        pass
    assert "migrate --apply" in str(caught.value.hint)
    roles.run("REVOKE USAGE ON SCHEMA public FROM PUBLIC", database)
    with pytest.raises(Unavailable, match="no schema has been selected"), open_registry(settings):
        pass
