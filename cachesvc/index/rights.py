"""Check that a role of PostgreSQL may do what a registry does: with rows, and never with the schema.

The schema is its owner's, who runs migrations. The role that serves needs nothing but the rights below, so
that who takes over a replica drops no table, and rewrites no line of the audit log.
"""

from __future__ import annotations

import sqlalchemy as sa

from cachesvc_client.wire.errors import Unavailable

from .tables import AuditRow, metadata

SCHEMA = "alembic_version"
"""The table that says which schema the database has."""
_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_LESS = {SCHEMA: ("SELECT",), str(AuditRow.__tablename__): ("SELECT", "INSERT")}
"""Tables of which a registry needs fewer rights. Who may delete a line of the audit log may write another one
in its place, so its owner alone deletes them, after years."""
_MISSING = sa.text("""
    SELECT name, kind, wanted, current_user FROM (
        SELECT name, 'TABLE' AS kind, wanted, has_table_privilege(to_regclass(name), wanted) AS has
        FROM unnest(CAST(:tables AS text[]), CAST(:rights AS text[])) AS of_tables(name, wanted)
        UNION ALL
        SELECT name, 'SEQUENCE', 'USAGE', has_sequence_privilege(to_regclass(name), 'USAGE')
        FROM unnest(CAST(:sequences AS text[])) AS of_sequences(name)
    ) AS every WHERE has IS FALSE ORDER BY name, wanted
""")


def rights() -> list[tuple[str, str]]:
    """Return each table with each right that a registry needs there."""
    names = [SCHEMA, *(table.name for table in metadata.sorted_tables)]
    return [(name, right) for name in names for right in _LESS.get(name, _ROWS)]


def sequences() -> list[str]:
    """Return the sequences that number rows."""
    numbered = ((table, table.autoincrement_column) for table in metadata.sorted_tables)
    return [f"{table.name}_{number.name}_seq" for table, number in numbered if number is not None]


def demand_rights(connection: sa.Connection) -> None:
    """Raise ``Unavailable`` if the role of a connection to PostgreSQL lacks a right on the tables that are
    there."""
    tables, wanted = zip(*rights(), strict=True)
    values = {"tables": list(tables), "rights": list(wanted), "sequences": sequences()}
    missing = connection.execute(_MISSING, values).all()
    if missing:
        name, kind, right, role = missing[0]
        more = f", and {len(missing) - 1} more rights" if len(missing) > 1 else ""
        what = name if kind == "TABLE" else f"{kind} {name}"
        raise Unavailable(
            f"the index cannot be used: role {role} lacks {right} on {kind.lower()} {name}{more}",
            f"as the owner of the tables: GRANT {right} ON {what} TO {role}",
        )
