"""Which tests show each failure mode of docs/operate.md, by the first cell of its row."""

from __future__ import annotations

SHOWN_BY: dict[str, tuple[str, ...]] = {
    "the registry is down, or hangs": (
        "tests/e2e/test_by_name.py::test_a_node_starts_from_its_last_answer_while_the_registry_is_down",
        "tests/e2e/test_by_name.py::test_whatever_is_wrong_the_first_compile_goes_on_and_the_service_says_why",
    ),
    "the database is down": ("tests/registry/test_outages.py::test_the_database_is_gone",),
    "the database's primary becomes a standby": (
        "tests/registry/test_faults.py::test_a_primary_that_becomes_a_standby_is_unavailable",
    ),
    "the store is down": ("tests/registry/test_outages.py::test_the_store_is_gone",),
    "services cannot reach the store, the registry can": (
        "tests/registry/test_production.py::test_clients_get_packs_from_the_store_and_else_from_the_registry",
    ),
    "Redis is down, or hangs": (
        "tests/registry/test_outages.py::test_redis_is_gone",
        "tests/hot/test_redis.py::test_redis_that_hangs_costs_one_timeout_and_not_each_time",
    ),
    "a disk is full": (
        "tests/registry/test_faults.py::test_a_full_disk_refuses_publishing_and_nothing_else",
    ),
    "a replica is killed": (
        "tests/registry/test_serve.py::test_kill_9_between_the_steps_of_a_publish",
        "tests/registry/test_crashes.py::test_publish_killed_at_each_step",
    ),
    "collection is killed": ("tests/registry/test_crashes.py::test_collection_killed_at_each_step",),
    "the store lost, or altered, a pack": (
        "tests/registry/test_crashes.py::test_deletion_and_repair_killed_at_each_step",
    ),
    "the signing key is lost": ("tests/registry/test_outages.py::test_the_signing_key_is_lost",),
    "a signing key leaked": ("tests/security/test_revoked.py::test_revoked_code_is_not_run_again",),
    "a token leaked": ("tests/registry/test_production.py::test_two_replicas_share_what_they_know",),
    "no admin's token is left": (
        "tests/registry/test_replicas.py::test_what_a_deployment_runs_before_its_replicas",
    ),
    "a clock is wrong": (
        "tests/registry/test_faults.py::test_a_publishers_clock",
        "tests/registry/test_faults.py::test_a_clock_that_is_not_the_stores",
    ),
    "the bucket's rights, name or region are wrong": (
        "tests/registry/test_faults.py::test_a_bucket_without_rights",
        "tests/registry/test_faults.py::test_what_aws_answers_and_ceph_does_not",
    ),
    "a renewed certificate is half-written, or does not fit its key": (
        "tests/registry/test_tls.py::test_a_renewed_certificate_is_taken_up_without_a_restart",
    ),
    "the index is damaged": ("tests/registry/test_faults.py::test_a_damaged_index",),
    "the data folder is on a network file system": (
        "tests/registry/test_faults.py::test_a_network_file_system",
    ),
}
