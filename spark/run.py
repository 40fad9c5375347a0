"""The jobs from first to last call: steps on the server, and steps here or in Spark.

    archive   write the files of a span -> commit -> publish its manifest -> done
    expire    read the archive back, or only count every slice -> commit
    compact   write a day's files again, few and sorted -> commit -> publish -> done
    split     sketch every shard -> cut points -> count the pieces -> commit

The first two are plain Python with pyarrow. Spark comes in for a backfill, and for the last two.

Any error is reported to the server, which then forgets the job: no state of the timeline depends on it.
"""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from shards.archives import Report
from shards.jobs import ABORTED, ARCHIVE, COMPACT, ENDED, EXPIRE, SPLIT

from .errors import LeaseLost, SparkError
from .job import Job
from .lease import Lease
from .remote import Remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .storage import Storage

DETAIL_CHARS = 900
NOTHING = "nothing to do: "
_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*): (.+)$")

_FAILURE = re.compile(r"most recent failure: .*?: [\w.]*\.(\w+: .+)")


def run(remote: Remote, job: Job, master: str | None) -> str:
    """Run a job; returns a summary. Raises SparkError, after reporting it to the server."""
    if job.state in ENDED:
        return f"job {job.id} is {job.state} already"
    with Lease(remote, job) as lease:
        try:
            return STAGES[job.kind](remote, job, lease, master)
        except BaseException as error:
            if lease.why:
                raise LeaseLost(f"job {job.id} is lost: {lease.why}") from error
            interruption = interruption_behind(error)
            with suppress(SparkError):
                remote.abort(job, words_of(interruption or error)[:DETAIL_CHARS])
            if interruption is not None:
                raise interruption from error
            if isinstance(error, SparkError):
                raise
            raise SparkError(words_of(error)) from error


def _commit(remote: Remote, job: Job, lease: Lease, master: str | None) -> str:
    """An archive or a compaction: have the server record what was written, and publish that."""
    from .publish import claim, cleared, publish
    from .storage import storage_at

    storage = storage_at(job.archive or "")
    claim(storage, job)
    for manifest in job.unpublished:
        publish(storage, manifest, job.archive_catalog)
    if job.kind == ARCHIVE and not job.again and job.from_ms == job.to_ms:
        lease.begin_commit()
        remote.commit(job, {"published": job.last})
        return f"job {job.id}: {len(job.unpublished)} commits published"
    with cleared(storage, job):
        report = _written(job, storage, lease, master)
    if report is None:
        remote.abort(job, why := f"{NOTHING}{job.date} has few files already")
        return why
    lease.begin_commit()
    manifest = remote.record(job, report)
    publish(storage, manifest, job.archive_catalog)
    remote.commit(job, {"published": manifest.number})
    said = f"job {job.id}: commit {manifest.number}"
    if job.kind == COMPACT:
        return f"{said} has {len(report.files)} files for {len(report.replaces)}"
    return f"{said} with {sum(one.archived for one in report.spans)} messages archived in {storage.name}"


def _written(job: Job, storage: "Storage", lease: Lease, master: str | None) -> Report | None:
    from . import archive, compact

    if job.kind == ARCHIVE and not archive.is_backfill(job, master):
        return archive.archive(job, storage, lease)
    with spark_session(master, job) as session:
        if job.kind == ARCHIVE:
            return archive.archive(job, storage, lease, session)
        return compact.work(session, job, storage)


def _expire(remote: Remote, job: Job, lease: Lease, _: str | None) -> str:
    from .expire import counted, read_back

    if job.archive:
        slices, faults = read_back(job, lease)
        if faults:
            remote.commit(job, {"faults": faults}, ABORTED)
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            raise SparkError(f"nothing dropped: the archive is damaged: {faults[0]['detail']}{more}")
    else:
        slices = counted(job)
    lease.begin_commit()
    remote.commit(job, {"slices": slices})
    rows = sum(one["rows"] for one in slices)
    return f"job {job.id}: {len(slices)} slices with {rows} rows dropped"


def _split(remote: Remote, job: Job, lease: Lease, master: str | None) -> str:
    from .split import split

    with spark_session(master, job) as session:
        return split(remote, job, lease, session)


def spark_session(master: str | None, job: Job) -> "AbstractContextManager[SparkSession]":
    """A session for a job: only here is Spark imported."""
    from .session import spark_session as opened

    return opened(master, f"fasti {job.kind} {job.id}")


STAGES: dict[str, Callable[[Remote, Job, Lease, str | None], str]] = {
    SPLIT: _split,
    EXPIRE: _expire,
    ARCHIVE: _commit,
    COMPACT: _commit,
}


def interruption_behind(error: BaseException) -> BaseException | None:
    """The signal behind an error: a Spark call interrupted by a signal leaves a gateway whose next call, at
    the end of the session, may fail."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt | SystemExit):
        seen = seen.__cause__ or seen.__context__
    return seen


def words_of(error: BaseException) -> str:
    """One line that says why: for an error in a task the line of the task's own exception."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "the job was told to end"
    lines = str(error).splitlines()
    for line in reversed(lines):
        found = _RAISED.match(line.strip())
        if found and "py4j" not in line and "org.apache" not in line:
            return found[2]
    if failure := _FAILURE.search(str(error)):
        return failure[1]
    first = next((line.strip() for line in lines if line.strip()), "")
    return first or type(error).__name__
