"""What a running process asks of the kernel, by strace: in which order it writes, syncs, answers; and faults.

Skipped, visibly, where there is no strace or it may not attach.
"""

import asyncio
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

CALLS = "write,writev,pwrite64,sendto,sendmsg,fsync,fdatasync"
TIMEOUT_S = 60.0
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(\(| resumed>)(.*)$")
_SYNCS = ("fsync", "fdatasync")


@asynccontextmanager
async def traced(pid: int, into: Path, *options: str) -> AsyncIterator[None]:
    """Attached to a process and all its threads, until the end. `options`: of strace; `-e inject=...`."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("no strace on this machine")
    tracer = await asyncio.create_subprocess_exec(
        program,
        *("-f", "-y", "-s", "4096", "-o", str(into), "-p", str(pid), *options),
        stderr=asyncio.subprocess.PIPE,
    )
    assert tracer.stderr is not None
    said = b""
    deadline = time.monotonic() + TIMEOUT_S
    while b"attached" not in said:
        line = await asyncio.wait_for(tracer.stderr.readline(), deadline - time.monotonic())
        said += line
        if not line:
            await tracer.wait()
            pytest.skip(f"strace may not attach: {said.decode().strip()}")
    try:
        yield
    finally:
        if tracer.returncode is None:
            tracer.send_signal(signal.SIGINT)
        await tracer.communicate()


class Answer(NamedTuple):
    """What an answer looks like on a socket, as strace writes it; the `nth` of those that look like that."""

    text: str
    nth: int = 1


def unsynced(trace: str, answers: Mapping[str, Answer]) -> list[str]:
    """What was answered before a sync that began after its row was in the log had ended.

    `answers`: by the text that a row has in the log. A row of before the trace is not seen. An answer leaves
    by a socket: the engine tells its figures in a file.
    """
    seen = _Seen(answers)
    for number, line in enumerate(trace.splitlines()):
        found = _LINE.match(line)
        if found is not None:
            thread, call, how, rest = found.groups()
            if call in _SYNCS:
                seen.sync(number, thread, is_entered=how == "(", rest=rest)
            elif ".log>" in rest:
                seen.log(number, rest)
            elif "<socket:" in rest:
                seen.socket(rest)
    return seen.faults()


class _Seen:
    """What of a trace has been read, by the number of its line."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self._logged: dict[str, int] = {}
        self._synced: set[str] = set()
        self._begun: dict[str, int] = {}
        """By thread, when the sync began that it is in."""
        self._left: dict[str, bool] = {}
        """By text, whether it was synced when its answer left."""
        self._sent: Counter[str] = Counter()
        """By what an answer looks like, how many have left."""
        self._looks = {answer.text for answer in answers.values()}

    def sync(self, number: int, thread: str, *, is_entered: bool, rest: str) -> None:
        if is_entered and ".log>" in rest:
            self._begun[thread] = number
        if "unfinished" not in rest and thread in self._begun:
            begun = self._begun.pop(thread)
            if "= 0" in rest:
                self._synced |= {text for text, at in self._logged.items() if at < begun}

    def log(self, number: int, rest: str) -> None:
        for text in self._answers:
            if text in rest:
                # A session's row may be written more often: the last one before the answer counts.
                self._logged[text] = number
                self._synced.discard(text)

    def socket(self, rest: str) -> None:
        seen = {look: rest.count(look) for look in self._looks if look in rest}
        self._sent.update(seen)
        for text, (look, nth) in self._answers.items():
            if look in seen and nth <= self._sent[look]:
                self._left.setdefault(text, text in self._synced)

    def faults(self) -> list[str]:
        faults = [f"{text} was answered before it was synced" for text, was in self._left.items() if not was]
        faults += [f"{text} is not in the log" for text in self._answers if text not in self._logged]
        faults += [f"{text} has no answer" for text in self._answers if text not in self._left]
        return faults
