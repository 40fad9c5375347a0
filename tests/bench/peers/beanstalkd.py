"""beanstalkd with a binlog that it fsyncs at each write (`-f 0`), job by job: it has no group commit."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

from ..process import Process, Running, answering

ACK = "fsynced, one by one"


@contextmanager
def beanstalkd(folder: Path) -> Iterator[Running | None]:
    program, at = shutil.which("beanstalkd"), ("127.0.0.1", free_port())
    if program is None:
        yield None
        return
    data = folder / "beanstalkd"
    data.mkdir()
    arguments = ["-l", at[0], "-p", str(at[1]), "-b", str(data), "-f", "0"]
    process = Process([program, *arguments], folder / "beanstalkd.log", {})
    with answering(process, at):
        yield Running(process, at)
