"""Test bundles as artifacts and images of OCI."""
