"""`make fast`: the hot modules compiled for this checkout, in build/fast.

    FASTI_FAST=build/fast .venv/bin/fasti-server ...

runs them. Nothing is done where what is there was compiled from these sources, by this mypy and for this
Python."""

import os
import shutil
import subprocess
import sys

from server.build import NOTE

from .extension import FOLDER, ROOT, note_of

PLACE = ROOT / "build" / "fast"
WORK = ROOT / "build" / "fast.work"


def main() -> None:
    """Compile, unless that would make the same again; what is there is replaced as a whole."""
    wanted = note_of()
    if (PLACE / NOTE).exists() and (PLACE / NOTE).read_text(encoding="utf-8") == wanted:
        print(f"{PLACE.relative_to(ROOT)} is of these sources")  # noqa: T201
        return
    shutil.rmtree(WORK, ignore_errors=True)
    command = [sys.executable, "setup.py", "--quiet", "build_ext"]
    folders = [f"--build-lib={WORK / 'lib'}", f"--build-temp={WORK / 'temp'}"]
    subprocess.run([*command, *folders], cwd=ROOT, env={**os.environ, "FASTI_COMPILE": "1"}, check=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    (WORK / "lib" / FOLDER).rename(PLACE)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
