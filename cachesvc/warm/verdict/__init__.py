"""Judge what the phases of a target showed, and hold what came of it. Pure."""
