"""Counts of waiting messages: counted from the rows at start, and kept current since.

    pending    messages neither dispatched nor cancelled, wherever they wait
    held       rows of the table `held`: messages that wait because the clock was set back, and the stubs
               of cancelled ones until their due
    retries    messages that wait for their next try, or are being tried again, each for one place
    withheld   rows of withheld messages (withheld.py)

Only the methods here change them. They include what is composed but not written: `undo` removes a group that
will not be written, and after a failure all are counted again.
"""


class Waiting:
    """The counts of one timeline. Plain attributes, so that reading one is cheap."""

    __slots__ = ("_before", "held", "pending", "retries", "withheld")

    def __init__(self, pending: int = 0, held: int = 0, retries: int = 0) -> None:
        self.recounted(pending, held, retries)

    def recounted(self, pending: int, held: int, retries: int = 0, withheld: int = 0) -> None:
        """Set the counts from the rows."""
        self.pending, self.held, self.retries, self.withheld = pending, held, retries, withheld
        self.begin()

    def begin(self) -> None:
        """Open a group: `undo` returns to this state."""
        self._before = self.pending, self.held, self.retries, self.withheld

    def undo(self) -> None:
        """Undo the open group: it will not be written."""
        self.pending, self.held, self.retries, self.withheld = self._before

    def placed(self, count: int) -> None:
        """Count new messages, on the timeline or in `held`."""
        self.pending += count

    def cancelled(self) -> None:
        """Count a cancelled message."""
        self.pending -= 1

    def dispatched(self, count: int) -> None:
        """Count messages that the horizon has passed, none of them of the open group."""
        self.pending -= count
        pending, held, retries, withheld = self._before
        self._before = pending - count, held, retries, withheld

    def held_back(self) -> None:
        """Count a row put into `held`."""
        self.held += 1

    def let_go(self) -> None:
        """Count a row deleted from `held`."""
        self.held -= 1

    def retry_kept(self, count: int) -> None:
        """Add to the retries; negative: fewer."""
        self.retries += count

    def withhold(self, count: int) -> None:
        """Add to the withheld ones; negative: fewer."""
        self.withheld += count
