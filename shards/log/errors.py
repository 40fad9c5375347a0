"""The errors of the log."""

from ..errors import ShardsError


class LogError(ShardsError):
    """Base of the log's errors."""


class Fenced(LogError):
    """Another node has the place: this node no longer leads, or not yet. The call wrote nothing."""


class LogDown(LogError):
    """The engine has not answered by the deadline. An append may have been written, or may still be."""


class NoLog(LogError):
    """There is no log of this name: it was never made, or it is lost. `last`: its last place, if it is there
    without records."""

    def __init__(self, text: str, last: int = 0) -> None:
        super().__init__(text)
        self.last = last


class Trimmed(LogError):
    """The record is no longer kept."""


class Damaged(LogError):
    """The log is not what was written: bytes have changed, records are missing, or it is another log."""


class Unchained(Damaged):
    """A whole record that was not written after the one before it."""


class Doubtful(Damaged):
    """A claim would come behind what may hide a record that only its writer knows."""


class OtherLog(LogError):
    """A store has records that this log lacks: it is another log, or it has lost its end."""


class OtherClusterKey(LogError):
    """The log, or the store, is of nodes with another key of the cluster."""


class UnknownVersion(LogError):
    """A whole record in a format that only another version reads."""


class Unfit(LogError):
    """The engine's setup does not guarantee that what it acknowledges survives a machine."""
