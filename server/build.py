"""Chooses the form of the hot modules: their sources, or modules compiled by mypyc.

A compiled module is not beside its source, where an old one would silently win over an edited source. It is
in a separate folder, with a note (`compiled.json`) about the sources of the whole folder:

    compiled/           beside this file, in a wheel that was built with FASTI_COMPILE=1
    FASTI_FAST=DIR      made by `make fast` from a checkout
    FASTI_PURE=1        the sources run in any case

The note has one digest over every source in timeline/, shards/ and server/, since constants and class layouts
are compiled into their users. If the sources have changed the process does not start, so that old and new
code never mix. For the same reason it is all or nothing: if a listed module was imported before the server,
the sources run.

`choose` is called when `server` is imported, before anything that may be compiled. Spark's jobs, which
never import the server, run the sources."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Literal

ROOMS = ("timeline", "shards", "server")
NOTE = "compiled.json"
SUFFIX = EXTENSION_SUFFIXES[0]
"""Suffix of files for this Python: .cpython-311-x86_64-linux-gnu.so"""


class Compiled(MetaPathFinder):
    """Finds the compiled modules before all other finders."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        """`names`: the modules, and their packages."""
        self._files = {name: folder / (name.replace(".", "/") + SUFFIX) for name in names}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        file = self._files.get(fullname)
        return spec_from_file_location(fullname, file) if file else None


def choose(environ: Mapping[str, str], root: Path) -> None:
    """Install the finder of compiled modules, if there are any and FASTI_PURE is not set.

    `root`: the folder of the rooms. Raises ImportError if they are from other sources, or for another Python.
    """
    named = environ.get("FASTI_FAST")
    folder = Path(named) if named else root / "server" / "compiled"
    if environ.get("FASTI_PURE") == "1" or not (named or (folder / NOTE).exists()):
        return
    names = _names(folder, root)
    if sys.modules.keys().isdisjoint(names):
        sys.meta_path.insert(0, Compiled(folder, names))


def _names(folder: Path, root: Path) -> list[str]:
    """The compiled modules. Raises ImportError."""
    instead = "or set FASTI_PURE=1 to run the sources"
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ImportError(f"{folder}: nothing is compiled there; run `make fast`, {instead}") from None
    if note["suffix"] != SUFFIX:
        raise ImportError(f"{folder}: it was compiled for {note['suffix']}, this is {SUFFIX}; {instead}")
    if note["sources"] != digest_of(root):
        raise ImportError(f"{folder}: it was compiled from other sources; compile it again, {instead}")
    return [*note["modules"]]


def digest_of(root: Path) -> str:
    """Digest of every source in the rooms: hexadecimal digits."""
    digest = sha256()
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            source = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(source)}\n".encode())
            digest.update(source)
    return digest.hexdigest()


def form() -> Literal["pure", "compiled"]:
    """The running form: "pure" or "compiled"."""
    return "compiled" if any(isinstance(finder, Compiled) for finder in sys.meta_path) else "pure"
