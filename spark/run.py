"""The two jobs from first to last call: steps on the server, and steps in Spark.

    split     sketch every shard -> cut points -> count the pieces -> commit
    expire    count every slice -> commit

Any error is reported to the server, which then forgets the job: no state of the timeline depends on it.
"""

import re
from contextlib import suppress

from pyspark.sql import SparkSession

from shards.jobs import ENDED, EXPIRE, SPLIT

from .errors import LeaseLost, SparkError
from .expire import count_all
from .job import Job
from .lease import Lease
from .plan import cut_points, parts_for
from .remote import Remote
from .session import spark_session
from .split import counted, sketches

DETAIL_CHARS = 900
_RAISED = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*): (.+)$")

_FAILURE = re.compile(r"most recent failure: .*?: [\w.]*\.(\w+: .+)")


def run(remote: Remote, job: Job, master: str | None) -> str:
    """Run a job in its own session; returns a summary. Raises SparkError, after reporting it to the
    server."""
    if job.state in ENDED:
        return f"job {job.id} is {job.state} already"
    with Lease(remote, job) as lease:
        try:
            with spark_session(master, f"fasti {job.kind} {job.id}") as session:
                return STAGES[job.kind](remote, job, session, lease)
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


def _split(remote: Remote, job: Job, session: SparkSession, lease: Lease) -> str:
    found = sketches(session, job)
    parts = job.parts or parts_for(sum(one.total for one in found), job.split_above)
    cuts = cut_points(found, parts)
    if not cuts:
        return _left_alone(remote, job)
    pieces = counted(session, job, found, cuts)
    lease.begin_commit()
    remote.commit(job, {"cuts": cuts, "pieces": [piece._asdict() for piece in pieces]})
    rows = sum(piece.rows for piece in pieces)
    return f"job {job.id}: {rows} rows cut into {len(pieces)} slices"


def _left_alone(remote: Remote, job: Job) -> str:
    (piece,) = job.slices
    if job.parts is None and piece.count <= job.split_above:
        why = f"it has {piece.count} rows, and is overfull above {job.split_above}; --parts cuts it anyway"
    else:
        why = f"all of its {piece.count} rows are due in the same millisecond"
    remote.abort(job, f"nothing to do: {why}")
    return f"nothing to do: the slice at {piece.start_ms} is left alone: {why}"


def _expire(remote: Remote, job: Job, session: SparkSession, lease: Lease) -> str:
    if job.archive:
        raise SparkError(f"this program does not write to an archive: {job.archive}")
    report = count_all(session, job)
    lease.begin_commit()
    remote.commit(job, {"slices": report})
    rows = sum(one["rows"] for one in report)
    return f"job {job.id}: {len(report)} slices with {rows} rows dropped"


STAGES = {SPLIT: _split, EXPIRE: _expire}


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
