"""Test the opening of databases: migrations, durability, and refusals."""

from __future__ import annotations

import importlib.resources
import json
import sqlite3
import tarfile
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from cachesvc.index import engine, unit
from cachesvc.index.engine import (
    filesystem_type,
    open_postgresql,
    open_sqlite,
    pending_sqlite,
    refuse_network_filesystem,
)
from cachesvc.index.entries.heads import Place
from cachesvc.index.tables import metadata
from cachesvc.index.unit import Index, own_error
from cachesvc_client.wire.errors import InvalidRequest, ProtocolMismatch, StorageFull, Unavailable
from cachesvc_client.wire.names import Namespace, ShortName, Tag

GOLDEN = Path(__file__).parent.parent / "golden"
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /srv/nfs\\040share rw - nfs4 server:/x rw
41 40 8:2 / /srv/nfs\\040share/local rw - xfs /dev/sdb rw
42 22 0:51 / /srvx rw - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize("release", sorted(GOLDEN.glob("release-*.tar.xz")), ids=lambda path: path.name)
def test_the_steps_since_a_release_make_the_tables_of_a_new_database(tmp_path: Path, release: Path) -> None:
    with tarfile.open(release) as packed:
        [file] = [one for one in packed.getmembers() if one.name.endswith("/data/index.sqlite3")]
        (tmp_path / "old.sqlite3").write_bytes(packed.extractfile(file).read())
    for name in ("old", "new"):
        open_sqlite(tmp_path / f"{name}.sqlite3").close()
    assert schema_of(tmp_path / "old.sqlite3") == schema_of(tmp_path / "new.sqlite3") != {}


def schema_of(path: Path) -> dict[str, list[object]]:
    """Return what a database has of each table: columns, keys, indexes and constraints, in any order."""
    engine = sa.create_engine(f"sqlite:///{path}")
    found = sa.inspect(engine)
    read = (
        *(found.get_columns, found.get_pk_constraint, found.get_foreign_keys, found.get_indexes),
        *(found.get_unique_constraints, found.get_check_constraints),
    )
    tables = {name: [_in_order(one(name)) for one in read] for name in found.get_table_names()}
    engine.dispose()
    return tables


def _in_order(rows: object) -> list[str]:
    listed = rows if isinstance(rows, list) else [rows]
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in listed)


def test_a_new_database_has_the_tables_of_the_models(index: Index) -> None:
    """Autogenerate finds no difference, on either database."""
    with index._reading.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_sqlite_is_durable_and_can_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite3"
    opened = open_sqlite(path)
    with opened.write() as unit:
        unit.objects.add("packs/a", 1)
    with opened._reading.connect() as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert pragmas == ["wal", 2, 1]
    opened.close()
    again = open_sqlite(path)
    with again.read() as unit:
        assert [facts.key for facts in unit.objects.loose(10, 5)] == ["packs/a"]
    again.close()


def test_writers_that_wait_leave_connections_to_readers(tmp_path: Path) -> None:
    """Each waiting writer held a connection, and a fleet that reported at once stopped all who read."""
    opened = open_sqlite(tmp_path / "index.sqlite3")

    def write(number: int) -> None:
        with opened.write() as writing:
            writing.objects.add(f"packs/{number}", 1)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2 * engine.CONNECTIONS)]
    with opened.write():
        for writer in writers:
            writer.start()
        while sum(writer.is_alive() for writer in writers) < len(writers):
            pass
        assert opened.connections()["used"] == 1, "the one that writes"
        with opened.read() as reader:
            assert reader.objects.loose(10, 5) == []
    for writer in writers:
        writer.join(20)
    with opened.read() as reader:
        assert len(reader.objects.loose(10, 100)) == len(writers)
    opened.close()


def test_a_writer_waits_for_another_one_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit, "WRITER_SECONDS", 0.1)
    opened, errors = open_sqlite(tmp_path / "index.sqlite3"), []

    def write() -> None:
        try:
            with opened.write():
                pass
        except Unavailable as error:
            errors.append(str(error))

    with opened.write():
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(5)
    assert errors == ["the index is locked: other writers take too long (try again)"]
    write()
    assert len(errors) == 1
    opened.close()


@pytest.mark.parametrize("schema", ["g2-0001", "g2-9999", "0000", "somebody-elses"])
def test_an_unusable_schema_is_refused(tmp_path: Path, schema: str) -> None:
    path = tmp_path / "index.sqlite3"
    open_sqlite(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (schema,))
    connection.close()
    with pytest.raises(ProtocolMismatch, match=rf"schema {schema}.*upgrade"):
        open_sqlite(path)
    with pytest.raises(ProtocolMismatch, match=rf"schema {schema}.*upgrade"):
        pending_sqlite(path)


def test_a_schema_with_additions_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "index.sqlite3"
    open_sqlite(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    assert pending_sqlite(path) == []
    opened = open_sqlite(path)
    opened.check()
    opened.close()
    assert "schema 9999, of a newer cachesvc" in caplog.text


def test_every_migration_has_a_name_with_its_generation() -> None:
    with importlib.resources.as_file(importlib.resources.files("cachesvc.index") / "migrations") as folder:
        steps = [step.revision for step in ScriptDirectory(str(folder)).walk_revisions()]
    assert steps and all(engine._STEP.fullmatch(step) for step in steps)
    assert steps == sorted(steps, key=lambda step: engine._STEP.fullmatch(step)[2], reverse=True)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite3"
    path.write_bytes(b"something else, and long enough to be looked at" * 100)
    with pytest.raises(InvalidRequest, match="not a database"):
        open_sqlite(path)


def test_a_first_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index.sqlite3"
    real = engine.command.stamp

    def make_and_fail(*arguments: object) -> None:
        real(*arguments)
        raise RuntimeError("power")

    monkeypatch.setattr(engine.command, "stamp", make_and_fail)
    with pytest.raises(RuntimeError):
        open_sqlite(path)
    monkeypatch.undo()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()
    open_sqlite(path).close()


def test_replicas_that_start_together_migrate_once(database: str) -> None:
    errors: list[BaseException] = []

    def start() -> None:
        try:
            opened = open_postgresql(database)
            opened.check()
            opened.close()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_an_absent_server_is_unavailable_in_one_line(postgresql: str) -> None:
    for url in ("postgresql://nobody@127.0.0.1:9/none", f"{postgresql}/no_such_database"):
        with pytest.raises(Unavailable) as error:
            open_postgresql(url)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("error", "kind", "word"),
    [
        (psycopg.errors.DiskFull("could not extend file"), StorageFull, "make room"),
        (psycopg.errors.TooManyConnections("sorry"), Unavailable, "max_connections"),
        (psycopg.errors.LockNotAvailable("canceling statement"), Unavailable, "somebody holds a lock"),
        (
            psycopg.errors.UndefinedTable('relation "tokens"'),
            Unavailable,
            "its tables are gone",
        ),
        (psycopg.errors.DeadlockDetected("deadlock detected"), Unavailable, "deadlock"),
        (psycopg.errors.UndefinedColumn('column "x" does not exist'), None, ""),
        (psycopg.errors.UniqueViolation("duplicate key"), None, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_postgresql_is_translated_and_a_defect_of_the_program_is_not_hidden(
    error: psycopg.Error, kind: type[Exception] | None, word: str
) -> None:
    own = own_error(sa.exc.DBAPIError.instance("SELECT 1", {}, error, psycopg.Error))
    assert type(own) is (kind or type(None))
    assert word in str(own)


def test_a_locked_sqlite_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_SECONDS", 0.1)
    path = tmp_path / "index.sqlite3"
    opened = open_sqlite(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"), opened.write() as unit:
        unit.objects.add("packs/a", 1)
    with opened.read() as unit:
        assert unit.objects.loose(10, 5) == []
    other.close()
    opened.close()


def test_a_full_sqlite_is_storage_full(tmp_path: Path) -> None:
    opened = open_sqlite(tmp_path / "index.sqlite3")

    def bounded(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA max_page_count=60")

    sa.event.listen(opened._reading, "connect", bounded)
    opened._reading.dispose()

    def fill() -> None:
        with opened.write() as unit:
            for number in range(20_000):
                unit.objects.add(f"packs/{number}", 1)

    with pytest.raises(StorageFull, match="make room"):
        fill()
    opened.close()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/x", "ext4"),
        ("/srv/nfs share/data", "nfs4"),
        ("/srv/nfs share", "nfs4"),
        ("/srv/nfs share/local/x", "xfs"),
        ("/srvx/data", "fuse.sshfs"),
        ("/srv", "ext4"),
    ],
)
def test_the_longest_mount_decides_the_file_system(folder: str, kind: str) -> None:
    assert filesystem_type(Path(folder), MOUNTS) == kind


def test_network_file_systems_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"network file system \(nfs4\).*--data"):
        refuse_network_filesystem(Path("/srv/nfs share/data"), MOUNTS)
    refuse_network_filesystem(Path("/srv/nfs share/local"), MOUNTS)
    refuse_network_filesystem(Path("/srv"), "")


def test_connections_that_the_server_closed_are_not_used(database: str) -> None:
    index = open_postgresql(database)
    with index.read() as unit:
        unit.namespaces.policies()
    base, _, name = database.rpartition("/")
    with psycopg.connect(f"{base}/postgres", autocommit=True) as connection:
        terminated = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        assert len(terminated.fetchall()) >= 1
    for block in (index.read, index.write):
        with block() as unit:
            assert unit.namespaces.policies() == {}
    index.close()


@pytest.mark.parametrize("number", [1, 3])
def test_a_connection_that_ends_during_a_read_is_replaced(database: str, number: int) -> None:
    """The server goes down in the middle of the read. The error is the usual one, and the next connection is
    new."""
    index = open_postgresql(database)
    base, _, name = database.rpartition("/")
    end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
    places = [Place(Namespace("team"), ShortName("bert"), Tag("latest"))] * number
    with (
        psycopg.connect(f"{base}/postgres", autocommit=True) as connection,
        pytest.raises(Unavailable, match="the index cannot be used"),
        index.look() as looked,
    ):
        connection.execute(end, (name,))
        looked.few_under_each(places, 10)
    with index.look() as looked:
        assert looked.few_under_each(places, 10) == [[]] * number
    index.close()
