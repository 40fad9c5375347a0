"""The errors of this room. Refused, for what a request may not do, is in dedupe.py."""


class ShardsError(Exception):
    """Base of the room's errors."""


class StoreFailed(ShardsError):
    """The engine did not write, sync or read. What was not durable may be lost."""


class LogFull(StoreFailed):
    """The log of several nodes has no room for more messages now."""


class Corrupt(ShardsError):
    """Stored bytes differ from what was written. The message names the file or the row."""


class StoreLocked(ShardsError):
    """Another process has the data directory open."""


class NotOurs(ShardsError):
    """The data directory is another program's or another user's, or is none."""


class SharedData(ShardsError):
    """The data belongs to a cluster's log: only records of that log may change it."""


class WrongFormat(ShardsError):
    """The data directory was written by another version of the format."""


class UnreleasedFormat(WrongFormat):
    """A version between two releases wrote it: no other version will ever read it."""


class WrongNumber(ShardsError):
    """The data was made with another `store.number`, which the ids of its messages have."""
