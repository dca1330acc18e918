"""Compile what a spec declares, prove that a fresh process reuses it, and publish it: `cachesvc warm`.

spec              a TOML file -> validated records -> jobs: targets x dtypes x modes               (pure)
worker            one phase of one job, in a fresh process; the only room that knows the client's inside
gpuless           the same for a GPU that this machine does not have
launcher, probe   starts these processes; proves the environment before any target
verdict           results of phases -> verdict and numbers                                         (pure)
context           what all targets of a run share, and what is known of one
run, target       all jobs; one target from its look-up to its publication
lookup, claims,   what the registry has; who compiles; compile, settle, trim, seal
build
missing           what services wanted and did not get
report, ci        outcomes -> table, JSON, Markdown, and what CI systems show
init              a spec of what a program compiled
provenance, ...   who builds, from what; and its login at the registry
kinds_used        the one module that asks kinds
"""
