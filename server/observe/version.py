"""Which version of the server this is."""

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "fasti-server"


def server_version() -> str:
    """The installed distribution's version; a bare checkout has none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
