"""The command of setuptools that compiles the modules, into a folder of their own with a note of their
sources.

The folder is laid out for `server/build.py`:
server/compiled/timeline/wheel.cpython-311-x86_64-linux-gnu.so. All modules are one group, so that a call
between two of them is a call of C; of one source each they would compile on both cores, and call through
Python's. Asserts stay, they are for our own mistakes.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from setuptools import Distribution
from setuptools.command.build_ext import build_ext

from server.build import NOTE, SUFFIX, digest_of

from .modules import MODULES

ROOT = Path(__file__).parents[1]
FOLDER = Path("server") / "compiled"
GROUP = "fasti"
"""Names the library that has all the code: fasti__mypyc.cpython-311-x86_64-linux-gnu.so"""


class Platform(Distribution):
    """Has extensions, though their sources are made only when they are built."""

    def has_ext_modules(self) -> bool:
        return True


class Compile(build_ext):
    """Called as `build_ext`."""

    def finalize_options(self) -> None:
        from mypyc.build import mypycify  # only where something is compiled

        self._note = note_of()  # of what is read now: an edit meanwhile is found at the start
        self.distribution.ext_modules = mypycify(
            ["--config-file", "pyproject.toml", *(f"{name.replace('.', '/')}.py" for name in MODULES)],
            opt_level="3",
            debug_level="0",
            target_dir=str(ROOT / "build" / "fast.c"),
            group_name=GROUP,
        )
        super().finalize_options()

    def run(self) -> None:
        super().run()
        (Path(self.build_lib) / FOLDER / NOTE).write_text(self._note, encoding="utf-8")

    def get_ext_fullpath(self, ext_name: str) -> str:
        place = Path(self.build_lib)
        return str(place / FOLDER / Path(super().get_ext_fullpath(ext_name)).relative_to(place))

    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), str(Path(self.build_lib) / FOLDER / NOTE)]


def note_of() -> str:
    """What is said of modules that are compiled now."""
    note = {
        "sources": digest_of(ROOT),
        "suffix": SUFFIX,
        "compiler": f"mypy {version('mypy')}",
        "modules": [*MODULES, f"{GROUP}__mypyc"],
    }
    return json.dumps(note, indent=1) + "\n"


def compiled() -> dict[str, Any]:
    """What `setup` is called with for a build with compiled modules."""
    return {"distclass": Platform, "cmdclass": {"build_ext": Compile}}
