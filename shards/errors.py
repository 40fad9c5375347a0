"""The errors of this room. Refused, for what a request may not do, is in dedupe.py."""


class ShardsError(Exception):
    """Base of the room's errors."""


class StoreFailed(ShardsError):
    """The engine did not write, sync or read; what was not durable before may be gone."""


class Corrupt(ShardsError):
    """Stored bytes are not what was written. The message names the file or the row."""


class StoreLocked(ShardsError):
    """Another process has the data directory open."""


class SharedData(ShardsError):
    """The rows are those of a cluster's log: nothing but what that has may change them."""


class WrongFormat(ShardsError):
    """The data directory was written by another version of the format."""
