"""What fasti is compared with: servers that a benchmark starts itself, on loopback, in its own directory.

redis.py        a sorted set by due time and a hash of bodies; append-only file, fsynced before each answer
postgres.py     a table with an index on due; synchronous_commit on
beanstalkd.py   jobs in tubes; binlog, fsynced at each write
mosquitto.py    a plain MQTT broker; acks from RAM
jobs.mjs        load and workers of BullMQ on redis.py, of pg-boss on postgres.py, and of fasti beside them

Each Python module gives a `Kind`, and the bytes to say to it.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port

from ..process import Process, Running, answering

Starts = Callable[[Path], AbstractContextManager[Running | None]]
"""One in this folder, ended at the end; None where it is not installed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A peer. `ack`: what it means by one."""

    name: str
    ack: str
    running: Starts


def program(name: str, arguments: Callable[[Path, int], Iterable[object]]) -> Starts:
    """The program of this name, with arguments for a folder and a port."""

    @contextmanager
    def running(folder: Path) -> Iterator[Running | None]:
        found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
        if found is None:
            yield None
            return
        at = ("127.0.0.1", free_port())
        process = Process([found, *map(str, arguments(folder, at[1]))], folder / f"{name}.log", {})
        with answering(process, at):
            yield Running(process, at)

    return running
