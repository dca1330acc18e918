"""The truth: SQLModel tables and repositories, for SQLite and PostgreSQL. All SQL is in this package.

``open_index`` makes an :class:`~.unit.Index`; one ``write()`` block is one transaction, and no blob is
touched inside it.
"""
