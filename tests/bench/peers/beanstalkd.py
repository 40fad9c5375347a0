"""beanstalkd with a binlog that it fsyncs at each write (`-f 0`), job by job: it has no group commit."""

from pathlib import Path

from . import Kind, program


def _arguments(folder: Path, port: int) -> list[object]:
    data = folder / "beanstalkd"
    data.mkdir()
    return ["-l", "127.0.0.1", "-p", port, "-b", data, "-f", 0]


BEANSTALKD = Kind("beanstalkd", "fsynced, one by one", program("beanstalkd", _arguments))
