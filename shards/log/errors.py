"""The errors of the log."""

from ..errors import ShardsError


class LogError(ShardsError):
    """Base of the errors of the log."""


class Fenced(LogError):
    """The place is another's: this node leads no longer, or does not yet. Nothing of the call was written."""


class LogDown(LogError):
    """The engine has not answered by the deadline. Of an append: it may have been written, or may yet be."""


class Trimmed(LogError):
    """What was asked for is no longer kept."""


class Damaged(LogError):
    """The log is not what was written: bytes have changed, records are missing, or it is another log."""


class OtherLog(LogError):
    """A store has records that this log never had, or has no more: it is another log, or has lost its end."""


class UnknownVersion(LogError):
    """A whole record in a form that only a later version of this software reads."""


class TooLarge(LogError):
    """More than the engine takes in one record. Nothing was written."""


class Unfit(LogError):
    """The engine is not set up so that what it acknowledges survives a machine."""
