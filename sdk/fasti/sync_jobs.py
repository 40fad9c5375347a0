"""The blocking twins of `client.jobs`, `client.server` and `client.cluster`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import admin as _admin
from . import cluster as _cluster
from . import jobs as _jobs
from .blocking import Loop
from .cluster import ClusterState
from .jobs import POLL_S, Job
from .wire import When


class Jobs:
    """See `fasti.jobs.Jobs`."""

    def __init__(self, loop: Loop, inner: _jobs.Jobs) -> None:
        self._loop = loop
        self._inner = inner

    def split(self, start: When, *, parts: int | None = None) -> Job:
        """Have the server cut a slice into narrower ones."""
        return self._loop.run(self._inner.split(start, parts=parts))

    def expire(self) -> Job:
        """Have the server archive and drop what is behind its retention."""
        return self._loop.run(self._inner.expire())

    def get(self, job_id: str) -> Job:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(job_id))

    def list(self) -> Iterator[Job]:
        """Jobs that go on, and the last ones that ended."""
        return self._loop.iterate(self._inner.list())

    def wait(
        self, job_id: str, *, on_progress: Callable[[Job], None] | None = None, poll_s: float = POLL_S
    ) -> Job:
        """The job when it has ended; `on_progress` is called in the client's thread."""
        return self._loop.run(self._inner.wait(job_id, on_progress=on_progress, poll_s=poll_s))


class Server:
    """See `fasti.admin.Server`."""

    def __init__(self, loop: Loop, inner: _admin.Server) -> None:
        self._loop = loop
        self._inner = inner

    def backup(self, directory: str) -> str:
        """Have it write a consistent copy of its data into a new directory."""
        return self._loop.run(self._inner.backup(directory))


class Cluster:
    """See `fasti.cluster.Cluster`."""

    def __init__(self, loop: Loop, inner: _cluster.Cluster) -> None:
        self._loop = loop
        self._inner = inner

    def status(self) -> ClusterState:
        """How the node that is asked sees the cluster. Raises NotFound."""
        return self._loop.run(self._inner.status())

    def retime(self) -> bool:
        """Have the leader compute the fires of all schedules anew. Raises Refused, NotFound."""
        return self._loop.run(self._inner.retime())
