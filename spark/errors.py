"""Errors of this room, and the program's exit code for each."""

from collections.abc import Sequence

ACTIVE = "job-active"
"""The slug of a problem: another job has the slice, or the archive."""


class SparkError(Exception):
    """Base of the room's errors: the job failed, and the message says why in a line."""

    code = 1


class Refused(SparkError):
    """A refusal of the server: `status` and `slug` of the problem; `details`: what is wrong in the
    request."""

    def __init__(self, status: int, slug: str, detail: str, details: Sequence[str] = ()) -> None:
        words = [f"{slug}: {detail}" if slug else detail, *details]
        super().__init__(
            "; ".join(words[1:] if slug == "refused" and details else words)
        )  # these name fields
        self.status = status
        self.slug = slug
        self.detail = detail
        self.code = 4 if slug == ACTIVE else 1


class Unreachable(SparkError):
    """No answer from that address."""

    code = 3


class NotAStore(SparkError):
    """A directory that is not a readable timeline; the message says what to do instead."""


class LeaseLost(SparkError):
    """The server aborted the job during the work."""


class ArchiveClash(SparkError):
    """The archive is not this timeline's, or not as this timeline left it."""


class NoJava(SparkError):
    """Spark needs Java 17 or newer."""
