"""Start the real servers of the tests: PostgreSQL, redis-server, Ceph's S3 gateway, and docker's registry.
Nothing is mocked."""
