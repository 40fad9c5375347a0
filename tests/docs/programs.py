"""Programs of others, and ours, which the tests of pages start and wait for."""

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def ran(
    *command: object, cwd: Path = ROOT, env: dict[str, str] | None = None, within_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """It has ended, and without an error."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=within_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def key_of(arguments: str, file: Path) -> str:
    """What `fasti-server` prints for these, with that file: `keys add ops --scope admin`."""
    return ran(sys.executable, "-m", "server", *shlex.split(arguments), "--file", file).stdout.strip()
