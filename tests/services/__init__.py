"""Real servers that the tests start: PostgreSQL, redis-server, and Ceph's S3 gateway. Nothing is mocked."""
