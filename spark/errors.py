"""What can go wrong in this room, and with which code the program then ends."""

from collections.abc import Sequence


class SparkError(Exception):
    """Base of the room's errors: the job failed, and the message says why in a line."""

    code = 1


class Refused(SparkError):
    """The server refused: `status` and `slug` of the problem; `details` say what is wrong in the request."""

    def __init__(self, status: int, slug: str, detail: str, details: Sequence[str] = ()) -> None:
        super().__init__("; ".join([f"{slug}: {detail}" if slug else detail, *details]))
        self.status = status
        self.slug = slug


class Unreachable(SparkError):
    """Nobody answers at that address."""

    code = 3


class NotAStore(SparkError):
    """A directory that cannot be read as a timeline; the message says what to do instead."""


class LeaseLost(SparkError):
    """The server has given the job up while it was worked on."""


class ArchiveClash(SparkError):
    """The archive has another slice under that name."""


class NoJava(SparkError):
    """Spark needs Java 17 or newer."""
