"""How many messages wait: figures that can be counted from rows, counted at start and kept up since.

    pending    messages neither dispatched nor cancelled, wherever they wait
    held       rows of the table `held`: messages that wait because the clock was set back, and the stubs
               of cancelled ones until their due
    retries    messages that wait for their next try, or are being tried again, each for one place

They are written by the methods here alone. They are ahead of the disk by what has been composed: a group that
is not going to be written is undone, and after a failure all are counted again.
"""


class Waiting:
    """The figures of one timeline. Reading one costs an attribute, so they are no properties."""

    __slots__ = ("_before", "held", "pending", "retries")

    def __init__(self, pending: int = 0, held: int = 0, retries: int = 0) -> None:
        self.recounted(pending, held, retries)

    def recounted(self, pending: int, held: int, retries: int = 0) -> None:
        """What the rows say."""
        self.pending, self.held, self.retries = pending, held, retries
        self.begin()

    def begin(self) -> None:
        """A group is opened: `undo` comes back to here."""
        self._before = self.pending, self.held, self.retries

    def undo(self) -> None:
        """The open group is not going to be written: the figures without it."""
        self.pending, self.held, self.retries = self._before

    def placed(self, count: int) -> None:
        """So many messages have come in, to the timeline or to `held`."""
        self.pending += count

    def cancelled(self) -> None:
        """One that was pending is not any more."""
        self.pending -= 1

    def dispatched(self, count: int) -> None:
        """The horizon has passed so many that were pending, none of them of the open group."""
        self.pending -= count
        pending, held, retries = self._before
        self._before = pending - count, held, retries

    def held_back(self) -> None:
        """A row was put into `held`."""
        self.held += 1

    def let_go(self) -> None:
        """A row of `held` was deleted."""
        self.held -= 1

    def retry_kept(self, count: int) -> None:
        """So many more wait for their next try; fewer, if negative."""
        self.retries += count
