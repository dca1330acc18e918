"""`cachesvc warm`: compiles what a spec declares, proves that a fresh process reuses it, publishes it.

spec.py    TOML -> validated records              (pure)
plan.py    targets x dtypes x modes -> jobs        (pure)
worker.py  one phase of one job, in a fresh process (the only module that imports torch)
judge.py   phase results -> verdict and numbers    (pure)
run.py     the straight line: compile, capture, settle, trim, prove, seal, publish
report.py  table, JSON, Markdown                   (pure)
"""
