"""What attaching weighs: one list for the tests that count it."""

LOADED_BY_ATTACH = {
    "cachesvc_client",
    "cachesvc_client.hooks.activity",
    "cachesvc_client.hooks.child_processes",
    "cachesvc_client.session.gc_pause",
    "cachesvc_client.session.deadline",
    "cachesvc_client.hooks.imports",
    "cachesvc_client.hooks.logger",
    "cachesvc_client.kinds",
    "cachesvc_client.graphs.ambient",
    "cachesvc_client.graphs.key_components",
    "cachesvc_client.kinds.cuda",
    "cachesvc_client.kinds.inductor",
    "cachesvc_client.graphs.keys",
    "cachesvc_client.graphs.operators",
    "cachesvc_client.kinds.rules",
    "cachesvc_client.kinds.triton",
    "cachesvc_client.kinds.inductor.tuning",
    "cachesvc_client.hooks.counters",
    "cachesvc_client.session.process",
    "cachesvc_client.environment.releases",
    "cachesvc_client.session.session",
    "cachesvc_client.wire",
    "cachesvc_client.wire.errors",
    "cachesvc_client.wire.key_components",
}
"""What an application's own thread pays for. Each more is to be argued for: `attach` has 50 ms."""
