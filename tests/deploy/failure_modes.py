"""List the tests that show each failure mode of docs/operate.md, by the first cell of its row."""

from __future__ import annotations

SHOWN_BY: dict[str, tuple[str, ...]] = {
    "the registry is down, or hangs": (
        "tests/e2e/test_by_name.py::test_a_node_starts_from_its_last_answer_while_the_registry_is_down",
        "tests/e2e/test_by_name.py::test_the_first_compile_goes_on_and_the_service_says_why_whatever_is_wrong",
    ),
    "the database is down": ("tests/registry/test_outages.py::test_without_the_database_only_links_work",),
    "the database's primary becomes a standby": (
        "tests/registry/test_faults.py::test_a_primary_that_becomes_a_standby_is_unavailable_for_writes",
    ),
    "the store is down": (
        "tests/registry/test_outages.py::test_without_the_store_entries_are_still_resolved",
    ),
    "services cannot reach the store, the registry can": (
        "tests/registry/test_production.py::test_clients_get_packs_from_the_store_or_else_from_the_registry",
    ),
    "the upstream of a mirror is gone": (
        "tests/registry/test_mirror.py::test_a_mirror_that_starts_without_its_registry_goes_on_with_what_it_has",
    ),
    "Redis is down, or hangs": (
        "tests/registry/test_outages.py::test_without_redis_answers_are_slower_and_never_wrong",
        "tests/hot/test_redis.py::test_a_hanging_redis_costs_one_timeout_only",
    ),
    "a disk is full": (
        "tests/registry/test_faults.py::test_a_full_disk_stops_publications_and_nothing_else",
    ),
    "a replica is killed": (
        "tests/registry/test_serve.py::test_a_publish_after_kill_9_at_any_step_ends_in_the_same_state",
        "tests/registry/test_crashes.py::test_publish_killed_at_each_step",
    ),
    "collection is killed": ("tests/registry/test_crashes.py::test_collection_killed_at_each_step",),
    "the store lost, or altered, a pack": (
        "tests/registry/test_crashes.py::test_deletion_and_repair_killed_at_each_step",
    ),
    "the signing key is lost": (
        "tests/registry/test_outages.py::test_after_the_loss_of_the_signing_key_a_new_key_publishes",
    ),
    "a signing key leaked": ("tests/security/test_revoked.py::test_revoked_code_is_not_run_again",),
    "the online key is lost, or leaked": (
        "tests/registry/test_trust_cli.py::test_an_online_key_that_leaked_is_replaced",
    ),
    "root or targets were not renewed for a year": (
        "tests/registry/test_offline_trust.py"
        "::test_the_registry_renews_what_it_signs_and_leaves_the_rest_to_the_operator",
    ),
    "a token leaked": (
        "tests/registry/test_production.py::test_two_replicas_share_publications_and_revocations",
    ),
    "no admin's token is left": (
        "tests/registry/test_replicas.py::test_a_deployment_migrates_and_makes_a_token_before_its_replicas",
    ),
    "a clock is wrong": (
        "tests/registry/test_faults.py::test_a_publishers_clock_may_be_late_and_not_far_ahead",
        "tests/registry/test_faults.py::test_a_clock_that_differs_from_the_stores_is_reported",
    ),
    "the bucket's rights, name or region are wrong": (
        "tests/registry/test_faults.py::test_a_bucket_without_rights_is_reported",
        "tests/registry/test_faults.py::test_errors_that_aws_has_and_ceph_has_not_are_reported",
    ),
    "a renewed certificate is half-written, or does not fit its key": (
        "tests/registry/test_tls.py::test_a_renewed_certificate_is_used_without_a_restart",
    ),
    "the index is damaged": ("tests/registry/test_faults.py::test_a_damaged_index_is_reported",),
    "the data folder is on a network file system": (
        "tests/registry/test_faults.py::test_a_network_file_system_is_reported",
    ),
}
