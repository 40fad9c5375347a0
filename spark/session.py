"""A Spark session that can run this room's tasks: here, on a standalone cluster, or through Spark Connect.

Tasks are Python functions of these rooms, so every worker needs the rooms. Workers on this machine find them
by path; others get them as an archive (`addArtifacts`), which both kinds of session can do. Compiled packages
(pyarrow, numpy, rocksdict, msgspec) must be installed there, and the checkpoint must be reachable under the
same path: one machine, or a shared file system.
"""

import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from .java import java_home

LOCAL = "local[2]"
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a JVM that lives a minute and sees no rows: half of its processor time was spent optimising itself."""
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
    """A session on `master`: local[n], spark://…, sc://…. None: spark-submit's, else `LOCAL`.

    It is stopped at the end. An existing session is used instead, and not stopped. Raises NoJava, except for
    sc://, which needs no Java here.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    address = master or ("" if is_submitted else LOCAL)
    needs_none = is_submitted or address.startswith("sc://")
    with nullcontext() if needs_none else java_home(os.environ):
        session = _started(address, name)
        try:
            with nullcontext() if address.startswith("local") else sent_rooms(session):
                yield session
        finally:
            session.stop()


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
    """Let child processes find these rooms from now on."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, known)])


@contextmanager
def sent_rooms(session: SparkSession) -> Iterator[None]:
    """Send these rooms to the workers, unless spark-submit has done so (`--py-files`).

    Workers fetch the archive on first use: it exists as long as the context.
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
    """Pack all Python of these rooms into an importable archive."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for room in ROOMS:
            for path in sorted((ROOT / room).rglob("*.py")):
                file.write(path, path.relative_to(ROOT).as_posix())
