"""`make quick` starts no process: here is what holds that, and that it can fail."""

import asyncio
import os
import subprocess
import sys

import pytest

REFUSED = "starts a process: mark it with pytest.mark.process"


async def test_a_quick_test_starts_no_process_beside_its_loop() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        await asyncio.create_subprocess_exec(sys.executable, "-c", "")


def test_a_quick_test_starts_no_process() -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        subprocess.run([sys.executable, "-c", ""], check=True)
    with pytest.raises(RuntimeError, match=REFUSED):
        os.fork()
    with pytest.raises(RuntimeError, match=REFUSED):
        os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    with pytest.raises(RuntimeError, match=REFUSED):
        os.system("true")


@pytest.mark.process
def test_one_that_is_marked_does() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
