"""Start the real servers of the tests: PostgreSQL, redis-server, and Ceph's S3 gateway. Nothing is mocked."""
