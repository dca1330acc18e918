"""Show what the commands of an operator print: tables, facts, plans that wait for ``--apply``."""
