"""The commands of ``cachesvc-client``, parsed by `cli`. A service that attaches needs none of these."""
