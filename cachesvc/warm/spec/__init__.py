"""Read what a user's TOML says: a spec, its targets and their inputs, and the jobs that follow."""
