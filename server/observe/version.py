"""The version of the server."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "fasti-server"


@cache
def server_version() -> str:
    """The installed distribution's version; a bare checkout has none. Cached: reading takes 1 ms."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
