"""Keeps a job's lease while Spark works: a thread renews it every few seconds, with the progress.

The server aborts a job that was not renewed within its lease, and then refuses renewals. The work is useless
then: the main thread is interrupted, wherever it waits for Spark, and finds the reason in `why`.
"""

import signal
import threading
import time
from collections.abc import Callable

from .errors import Refused, Unreachable
from .job import Job
from .remote import Remote

EVERY_S = 15.0
ProgressSource = Callable[[], tuple[int, int] | None]


class Lease:
    """Keeps the lease while entered."""

    def __init__(self, remote: Remote, job: Job, *, every_s: float = EVERY_S) -> None:
        self._remote = remote
        self._job = job
        self._every_s = min(every_s, job.lease_s / 4)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._progress: ProgressSource = lambda: None
        self._is_committing = False
        self.why = ""
        """Why it was lost; empty: it was not."""

    def follow(self, progress: ProgressSource) -> None:
        """Report progress from now on: `progress` gives (done, total)."""
        self._progress = progress

    def begin_commit(self) -> None:
        """The commit follows: losing the lease from now on does not interrupt."""
        self._is_committing = True

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._ended.wait(self._every_s):
            try:
                self._remote.renew(self._job, self._progress())
                heard = time.monotonic()
            except Refused as error:
                self._lose(str(error))
                return
            except Unreachable as error:
                if time.monotonic() - heard > self._job.lease_s:
                    self._lose(str(error))
                    return

    def _lose(self, why: str) -> None:
        if self._ended.is_set() or self._is_committing:
            return
        self.why = why
        main = threading.main_thread().ident
        if main is not None:
            # Not interrupt_main(), which does not wake a thread that waits for a socket.
            signal.pthread_kill(main, signal.SIGINT)
