"""Servers that are forked off a process which has imported the server.

A start is mostly imports: 0.55 s of 0.6 s of processor time. The rest is as of `python -m server`: a process
with an id, an environment, a working directory, the umask of who starts it and files of its own, that ends
with a code or by a signal.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import TimeoutExpired
from threading import Lock

_context = get_context("forkserver")
_context.set_forkserver_preload(["server.__main__", "server.run", "server.cluster.node", __name__])

_reading = Lock()
"""An exit code is read once, from a pipe, and each start reads those of all others: of two threads that read
one at a time the second is told 255."""

_READ = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
"""What imports have read, as of the time zones."""


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether imports would be the same in this environment."""
    its = {name: value for name, value in env.items() if name.startswith("PYTHON")}
    return {**its, "PYTHONPATH": ""} == {**_READ, "PYTHONPATH": ""}


class Forked:
    """What `subprocess.Popen` would be of `python -m server`, as far as the tests ask it."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        out: Path,
        module: str = "server.__main__",
        err: Path | None = None,
    ) -> None:
        """`out`: what it prints; without `err` its errors, too. `module`: has the `main` that runs."""
        sys.audit("subprocess.Popen", "server", arguments, cwd, None)
        out.touch()
        umask = os.umask(0)
        os.umask(umask)
        self._process = _context.Process(
            target=_main,
            args=(module, list(arguments), str(cwd), dict(env), umask, str(out), str(err or out)),
            daemon=True,
        )
        with _reading:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _reading:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise TimeoutExpired("server", timeout or 0.0)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def _main(
    module: str, arguments: list[str], cwd: str, env: dict[str, str], umask: int, *outputs: str
) -> None:
    os.chdir(cwd)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate(outputs, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, number)
        os.close(file)
    sys.exit(import_module(module).main(arguments))
