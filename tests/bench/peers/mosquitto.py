"""mosquitto, a plain MQTT broker in C, its bounds out of the way. It acks from RAM: its persistence is a copy
of all that it has, every half hour or so, and is off here.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

from ..process import Process, Running, answering

ACK = "in RAM"
PROGRAM = Path("/usr/sbin/mosquitto")


@contextmanager
def mosquitto(folder: Path) -> Iterator[Running | None]:
    found = PROGRAM if PROGRAM.exists() else shutil.which("mosquitto")
    if found is None:
        yield None
        return
    at = ("127.0.0.1", free_port())
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {at[1]} {at[0]}\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n"
        "max_inflight_messages 1000\nmax_queued_messages 0\nlog_type error\n"
    )
    process = Process([str(found), "-c", str(config)], folder / "mosquitto.log", os.environ)
    with answering(process, at):
        yield Running(process, at)
