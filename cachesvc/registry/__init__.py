"""Run the use cases, without HTTP. Each takes a :class:`~.context.Registry` and the token that asks."""
