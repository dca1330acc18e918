"""The registry, ``cachesvc warm`` and the command line. The client is `cachesvc_client`."""

from cachesvc_client import __version__ as __version__
