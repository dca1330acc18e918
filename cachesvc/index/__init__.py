"""Keep the truth: SQLModel tables and repositories, for SQLite and PostgreSQL. All SQL is in this package.

``engine`` opens an :class:`~.unit.Index`; one ``write()`` block is one transaction, and no blob is
touched inside it.
"""
