"""Alembic's entry. The connection comes from ``cachesvc.index.engine``, in its transaction."""

from alembic import context

from cachesvc.index.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
)
context.run_migrations()
