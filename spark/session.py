"""A Spark session that can run this room's tasks: here, on a standalone cluster, or through Spark Connect.

Tasks are Python functions of these rooms, so every worker needs them. Workers on this machine are told where
they lie; to others they are sent as an archive (`addArtifacts`), which both kinds of session can do. What is
compiled (pyarrow, numpy, rocksdict, msgspec) has to be installed there, and the checkpoint has to be
reachable under the same path: one machine, or a shared file system.
"""

import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from .java import Java

LOCAL = "local[2]"
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a JVM that lives a minute and sees no rows: half of its processor time went into optimising itself."""
ROOMS = ("timeline", "shards", "spark")
ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}


@contextmanager
def spark_session(master: str | None, name: str) -> Iterator[SparkSession]:
    """A session on `master`: local[n], spark://…, sc://…. None: what spark-submit says, else `LOCAL`.

    Stopped at the end, unless there was one already, which is then used. Raises NoJava, but for sc://, which
    needs none here.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    address = master or ("" if is_submitted else LOCAL)
    java = None if is_submitted or address.startswith("sc://") else Java(os.environ)
    try:
        session = _started(address, name)
        try:
            with nullcontext() if address.startswith("local") else sent_rooms(session):
                yield session
        finally:
            session.stop()
    finally:
        if java is not None:
            java.close()


def _started(address: str, name: str) -> SparkSession:
    if address.startswith("sc://"):
        remote: SparkSession = SparkSession.builder.remote(address).appName(name).getOrCreate()
        return remote
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    if address:
        builder = builder.master(address)
    if address.startswith("local"):
        see_rooms()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    return builder.getOrCreate()


def see_rooms() -> None:
    """Let processes that are started from now on find these rooms."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, known)])


@contextmanager
def sent_rooms(session: SparkSession) -> Iterator[None]:
    """Send these rooms to the workers, unless spark-submit has done so already (`--py-files`).

    Workers fetch the archive when they first need it: it is there as long as the context.
    """
    if not ROOT.is_dir():
        yield
        return
    with TemporaryDirectory(prefix="fasti-rooms-") as folder:
        archive = Path(folder) / "fasti_rooms.zip"
        pack_rooms(archive)
        session.addArtifacts(str(archive), pyfile=True)
        yield


def pack_rooms(archive: Path) -> None:
    """All Python of these rooms as an archive that can be imported from."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for room in ROOMS:
            for path in sorted((ROOT / room).rglob("*.py")):
                file.write(path, path.relative_to(ROOT).as_posix())
