"""Compile what a spec declares, prove that a fresh process reuses it, and publish it: `cachesvc warm`.

spec, inputs, toml_table,         TOML -> validated records                                    (pure)
toml_lines
plan                              targets x dtypes x modes -> jobs                             (pure)
run, target                       all jobs; one target from its look-up to its publication
lookup, claims, build             what the registry has; who compiles; compile, settle, trim, seal
context                           what all targets of a run share, and what is known of one
judge, results, report            results of phases -> verdict and numbers -> table, JSON      (pure)
phase, launcher, variables        what a fresh process is asked and answers; how it is started
worker                            one phase of one job, in a fresh process
execution, comparisons,           for `worker`: run the target, compare its outputs,
cache_files, user_code            name and capture files, import the user's code
factory_model                     the model, its inputs, calls and times
ranks                             the results of a script's ranks as one
triton_bundler, file_reads        hooks in PyTorch's bundler; which files are read
kinds_used                        the one module that names kinds
gpuless                           compile for a GPU that this machine does not have
"""
