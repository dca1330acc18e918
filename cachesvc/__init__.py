"""cachesvc: the registry, ``cachesvc warm`` and the command line. The client is `cachesvc_client`."""

__version__ = "0.1.0"
