"""Keep the registry in order: retention, collection, repair, quotas, quarantine and backups."""
