"""A real standalone cluster on loopback, from the pip package: one master, one worker, free ports."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from spark.java import java_home
from spark.session import JAVA_OPTIONS
from tests.support.server import ROOT

HOME = Path(pyspark.__file__).parent
READY_S = 120.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of its master. Both processes are ended by their ids."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }
    environment.pop("PYTHONPATH", None)  # what the workers know of our rooms was sent to them
    java = ExitStack()
    java.enter_context(java_home(environment))
    started: list[subprocess.Popen[bytes]] = []
    try:
        host = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = _start(folder, environment, "master.Master", *host)
        started.append(master)
        address = _said(folder / "master.Master.log", _MASTER, master)[1]
        size = ("--cores", "2", "--memory", "1g")
        worker = _start(folder, environment, "worker.Worker", *host, *size, address)
        started.append(worker)
        _said(folder / "worker.Worker.log", _REGISTERED, worker)
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
        java.close()


def _start(folder: Path, environment: dict[str, str], name: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def _said(log: Path, what: re.Pattern[str], process: subprocess.Popen[bytes]) -> re.Match[str]:
    deadline = time.monotonic() + READY_S
    while True:
        text = log.read_text(errors="replace")
        if found := what.search(text):
            return found
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def run_there(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m spark` as a program of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "spark", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def submit_there(folder: Path, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same through spark-submit, the rooms given as an archive."""
    archive = folder / "rooms.zip"
    rooms = [str(ROOT / room) for room in ("timeline", "shards", "spark")]
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(archive), *rooms], check=True)
    script = folder / "submit.py"
    script.write_bytes((ROOT / "spark" / "submit.py").read_bytes())
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("PYTHONPATH", None)
    command = [str(HOME / "bin" / "spark-submit"), "--master", address, "--py-files", str(archive)]
    command += ["--driver-java-options", JAVA_OPTIONS]
    return subprocess.run(
        [*command, str(script), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
