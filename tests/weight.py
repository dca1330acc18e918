"""What attaching weighs: one list for the tests that count it."""

LOADED_BY_ATTACH = {
    "cachesvc_client",
    "cachesvc_client.activity",
    "cachesvc_client.children",
    "cachesvc_client.collector",
    "cachesvc_client.deadline",
    "cachesvc_client.importhook",
    "cachesvc_client.kinds",
    "cachesvc_client.kinds.ambient",
    "cachesvc_client.kinds.components",
    "cachesvc_client.kinds.cuda",
    "cachesvc_client.kinds.inductor",
    "cachesvc_client.kinds.keys",
    "cachesvc_client.kinds.operators",
    "cachesvc_client.kinds.rules",
    "cachesvc_client.kinds.triton",
    "cachesvc_client.kinds.tuning",
    "cachesvc_client.observe",
    "cachesvc_client.process",
    "cachesvc_client.releases",
    "cachesvc_client.session",
    "cachesvc_client.wire",
    "cachesvc_client.wire.errors",
    "cachesvc_client.wire.keyfacts",
}
"""What an application's own thread pays for. Each more is to be argued for: `attach` has 50 ms."""
