"""Counts the passages of a process through everything that changes the disk, and ends it at one of them.

Nothing of the code is touched: the interpreter tells of each call of a function in C, before and after it,
in every thread. What counts are calls of the operating system, of the engine, and writes into files, made
from the code, however deep below it: `shutil.rmtree` in a function of pipeline.py is so many unlinks of that
function. A *point* is the function of ours with the call that was made and the line that it comes from:
`shards.mark:Mark.prepare rename (33)`.

It ends by SIGKILL *before* the call, *after* it, or *half*way: of what the call wrote the second half is
taken back, so that the file is as after a write that was torn.
"""

import os
import signal
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from tests.support.server import ROOT

from .places import ROOMS

BEFORE, HALF, AFTER = "before", "half", "after"
SYSTEM = frozenset(
    (
        *("fsync", "fdatasync", "rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink"),
        *("truncate", "ftruncate", "sendfile", "copy_file_range", "write", "pwrite", "pwritev", "writev"),
    )
)
FILES = frozenset(("FileIO", "BufferedWriter", "BufferedRandom", "TextIOWrapper"))
ENGINE = frozenset(
    (
        *("write", "flush_wal", "flush", "compact_range", "create_column_family"),
        *("drop_column_family", "create_checkpoint", "finish", "repair"),
    )
)
ARCHIVE = frozenset(("__init__", "write_table", "close"))
"""Of a `ParquetWriter`, which is not in C."""
ENGINES = frozenset(("Rdict", "Checkpoint", "SstFileWriter", "type"))
ROCKS = "shards.rocks"
_ROOTS = tuple(f"{ROOT / room}/" for room in ROOMS)


class Doom(NamedTuple):
    """Where to end: at the `nth` passage of a point."""

    point: str
    nth: int
    when: str


class Line(NamedTuple):
    """A line of the code from which the disk was changed."""

    module: str
    number: int


class Passage(NamedTuple):
    """A call that is under way: which passage of its point it is, and from where."""

    function: Any
    point: str
    nth: int
    lines: list[Line]


class Watch:
    """Counts, from `begin` on."""

    def __init__(
        self, doom: Doom | None = None, dying: Callable[[list[Line]], None] = lambda lines: None
    ) -> None:
        """`dying`: told the lines that the call comes from, just before the end."""
        self.passed: Counter[str] = Counter()
        self.torn: set[str] = set()
        """Points that can be passed halfway."""
        self.lines: set[Line] = set()
        self._doom = doom
        self._dying = dying
        self._halves: dict[int, Callable[[], None]] = {}
        """By thread, what tears the call that it is in."""
        self._calls: dict[int, Passage] = {}
        """By thread, the call that it is in."""

    def begin(self) -> None:
        sys.addaudithook(self._audited)
        threading.setprofile(self._told)
        sys.setprofile(self._told)

    def end(self) -> None:
        assert sys.getprofile() is not None, "what is told to `Watch` raised"
        sys.setprofile(None)
        threading.setprofile(None)
        self._audited = lambda event, arguments: None  # type: ignore[method-assign]

    # -- what the interpreter tells

    def _told(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            call = _call_of(function)
            if call:
                self._entered(frame, call, function)
        elif event in ("c_return", "c_exception"):
            self._is_over(function)
        elif frame.f_code.co_name in ARCHIVE and frame.f_code.co_qualname.startswith("ParquetWriter."):
            if event == "call":
                self._entered(frame.f_back, frame.f_code.co_name.strip("_"), frame.f_code)
            else:
                self._is_over(frame.f_code)

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A file is made, or opened to be written: there is nothing halfway."""
        if event != "open":
            return
        flags = arguments[2]
        is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if is_writing and sys.getprofile() is not None:
            self._entered(sys._getframe(1), "open", None)
            self._left()

    def _is_over(self, function: Any) -> None:
        found = self._calls.get(threading.get_ident())
        if found is not None and found.function == function:
            self._left()

    def _entered(self, frame: FrameType | None, call: str, function: Any) -> None:
        point, lines = _place(frame, call)
        if not point:
            return
        self.passed[point] += 1
        self.lines.update(lines)
        nth = self.passed[point]
        tear = _tearing(frame, call, function) if frame is not None else None
        if tear is not None:
            self.torn.add(point)
        if self._doom == (point, nth, BEFORE):
            self._die(lines)
        thread = threading.get_ident()
        self._calls[thread] = Passage(function, point, nth, lines)
        if tear is not None and self._doom == (point, nth, HALF):
            self._halves[thread] = tear

    def _left(self) -> None:
        thread = threading.get_ident()
        found = self._calls.pop(thread, None)
        if found is None:
            return
        _, point, nth, lines = found
        tear = self._halves.pop(thread, None)
        if tear is not None:
            tear()
            self._die(lines)
        if self._doom == (point, nth, AFTER):
            self._die(lines)

    def _die(self, lines: list[Line]) -> None:
        self._dying(lines)
        os.kill(os.getpid(), signal.SIGKILL)


def _call_of(function: Any) -> str:
    """The name of a call that changes the disk; empty: it does not."""
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    if owner is os or getattr(owner, "__name__", "") == "posix":
        return name if name in SYSTEM else ""
    kind = type(owner).__name__
    if kind in FILES:
        is_ours = name in ("write", "flush", "__exit__", "close", "truncate")
        return name.strip("_") if is_ours and _is_file(owner) else ""
    if kind in ENGINES and name in ENGINE:
        return str(name)
    if name == "open" and kind == "SstFileWriter":
        return "open"
    if name == "repair" and "rocksdict" in (getattr(function, "__module__", None) or "rocksdict"):
        return "repair"
    return ""


def _is_file(file: Any) -> bool:
    """Open to be written, and no pipe or log."""
    if file.closed or not file.writable():
        return False
    handle = file.fileno()
    return handle > 2 and stat.S_ISREG(os.fstat(handle).st_mode)


def _place(frame: FrameType | None, call: str) -> tuple[str, list[Line]]:
    """The point, and the lines of ours that the call comes from: of the innermost function, and, of what the
    store does for everybody, also of who asked it to."""
    lines: list[Line] = []
    point = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_ROOTS):
            module = path[len(str(ROOT)) + 1 : -3].replace("/", ".")
            function = frame.f_code.co_qualname.replace(".<locals>", "")
            lines.append(Line(module, frame.f_lineno))
            point = f"{module}:{function} {call} ({lines[0].number})"
            if module != ROCKS:
                break
        frame = frame.f_back
    return point, lines


def _tearing(frame: FrameType, call: str, function: Any) -> Callable[[], None] | None:
    """What takes back the second half of what the call is about to write; None: it has no half."""
    owner = getattr(function, "__self__", None)
    kind = type(owner).__name__
    if kind in FILES and call == "write":
        return _tearing_file(owner)
    if call == "pwrite":
        return _tearing_place(frame.f_locals["file"])
    if kind == "Rdict" and call == "write":
        store = frame.f_locals.get("self")
        return _tearing_end(max(Path(store.path).glob("*.log"))) if store is not None else None
    if call == "write_table":
        target = Path(frame.f_locals["storage"].full(frame.f_locals["path"]))
        return _tearing_end(next(target.parent.glob(f".{target.stem}.*.tmp")))
    if kind == "SstFileWriter" and call == "finish":
        return _tearing_end(Path(frame.f_locals["path"]))
    return None


def _tearing_file(file: Any) -> Callable[[], None]:
    file.flush()
    handle = file.fileno()
    start = os.lseek(handle, 0, os.SEEK_CUR)
    path = f"/proc/self/fd/{handle}"
    before = Path(path).read_bytes()

    def tear() -> None:
        file.flush()
        end = os.lseek(handle, 0, os.SEEK_CUR)
        middle = (start + end) // 2
        os.ftruncate(handle, max(middle, len(before)))
        os.pwrite(handle, before[middle:end], middle)

    return tear


def _tearing_place(handle: int) -> Callable[[], None]:
    """Of a file that is written over from its beginning."""
    path = Path(f"/proc/self/fd/{handle}")
    before = path.read_bytes()

    def tear() -> None:
        middle = path.stat().st_size // 2
        with path.open("r+b") as file:
            file.seek(middle)
            file.write(before[middle:])
            file.truncate()

    return tear


def _tearing_end(path: Path) -> Callable[[], None]:
    """Of a file that only grows, by what the engine has written into it."""
    size = path.stat().st_size if path.exists() else 0

    def tear() -> None:
        if path.exists():
            os.truncate(path, (size + path.stat().st_size) // 2)

    return tear
