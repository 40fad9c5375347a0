"""One mutant after the other, each in a process that is thrown away, against the tests that reach it.

    pytest collects the tests, once
      |- a child runs all of them under coverage: which lines each reaches, how long it takes
      |- a child for mutant 1: the function's code is replaced, its tests run, the first failure ends it
      |- a child for mutant 2 ...

A child is forked from a process that has imported and collected everything, so a mutant costs a few
milliseconds and its tests, the shortest first. What runs while a module is imported (constants, defaults)
cannot be replaced later: for such a mutant the child is forked before anything is imported, and finds the
changed module instead.

Nothing is written but in a folder that is thrown away: a child may not remove, rename or write a file
elsewhere, whatever its mutant believes. Limits are in processor time where they can be, so that a busy
machine changes nothing: each test has ten times what it took before. hypothesis has one seed, and keeps no
examples.
"""

import gc
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from itertools import accumulate
from pathlib import Path
from time import monotonic
from types import CodeType, FunctionType, ModuleType
from typing import Any

import coverage
import pytest
from hypothesis import Phase, settings

from .edits import MODULE, Mutant, changed, mutants_of

SURVIVED, KILLED, TIMED_OUT, UNREACHED = "survived", "killed", "timed out", "unreached"
TIMES = 10
"""How much longer than before a test may take with a mutant ..."""
LEAST_S = 1.0
"""... and what it may take in any case."""
SECONDS = 6.0
"""How long a mutant may be tried, as the tests went before; a module's own tests are run in any case."""
WAITING_S = 60.0
"""What waits so long, without using the processor, waits for ever."""
MORE_BYTES = 2 << 30
"""How much memory a child may take more than it has."""
_WRITES = {"os.remove", "os.rmdir", "os.rename", "os.truncate", "os.chmod", "os.mkdir", "shutil.rmtree"}
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_UNFIT = 3

Done = Callable[[Mutant, str, str], None]
Trial = Callable[[Mutant, list[str], int], None]


@dataclass(frozen=True)
class Place:
    """What is tried: the rooms whose modules are changed, the tests, where what is known of them is kept.

    `without`: words in the names of tests that are left out.
    """

    root: Path
    rooms: tuple[str, ...]
    tests: tuple[str, ...]
    build: Path
    without: tuple[str, ...] = ()

    def sources(self) -> dict[str, str]:
        """Module -> source, in order."""
        return self._read(self.rooms)

    def digest(self) -> str:
        """Another one if a module or a test has changed."""
        text = json.dumps([self._read(self.rooms), self._read(self.tests), self.without])
        return sha256(text.encode()).hexdigest()[:16]

    def _read(self, folders: Sequence[str]) -> dict[str, str]:
        paths = sorted(path for folder in folders for path in (self.root / folder).rglob("*.py"))
        return {str(path.relative_to(self.root)): path.read_text(encoding="utf-8") for path in paths}

    def pytest(self, plugin: object, tests: Sequence[str]) -> None:
        """Have the tests collected, and `plugin` asked what to do with them."""
        settings.register_profile(
            "mutation", database=None, deadline=None, phases=[Phase.explicit, Phase.generate]
        )
        settings.load_profile("mutation")
        known = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already.
        where = ["-c", str(self.root / "pyproject.toml"), f"--rootdir={self.root}"]
        without = [flag for name in ("cacheprovider", "xdist", "cov") for flag in ("-p", f"no:{name}")]
        others = ["-k", " and ".join(f"not {word}" for word in self.without)] if self.without else []
        paths = [str(self.root / test) for test in tests]
        pytest.main([*known, *where, *without, *others, "-q", "-s", "--hypothesis-seed=0", *paths], [plugin])


@dataclass(frozen=True)
class Reached:
    """Which tests reach which lines, and the processor seconds of each."""

    lines: dict[str, dict[str, list[str]]]
    """Module -> number of a line (as text) -> ids of tests."""
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Those that reach one of its lines; of what runs during an import, any line of the module.

        First those of the file named after the module, then the shortest, as far as SECONDS go.
        """
        lines = self.lines.get(mutant.module, {})
        wanted = list(lines) if mutant.function == MODULE else [str(number) for number in mutant.lines]
        found = {test for number in wanted for test in lines.get(number, ())}
        own = f"/test_{Path(mutant.module).stem}"
        order = sorted(found, key=lambda test: (own not in test, self.seconds[test], test))
        spent = accumulate(self.seconds[test] for test in order)
        return [test for test, seconds in zip(order, spent, strict=True) if own in test or seconds <= SECONDS]


def all_mutants(place: Place) -> list[Mutant]:
    return [mutant for module, source in place.sources().items() for mutant in mutants_of(module, source)]


def reached(place: Place) -> Reached:
    """As the last run noted it, if no file has changed since; else all tests are run, once.

    Raises SystemExit if one of them fails.
    """
    kept = place.build / f"reached-{place.digest()}.json"
    if not kept.exists():
        place.build.mkdir(parents=True, exist_ok=True)
        child = _Child(lambda note: place.pytest(_Reach(place, kept), place.tests), place.build)
        child.ended(os.waitpid(child.pid, 0)[1])
        if not kept.exists():
            raise SystemExit("the tests fail without a mutant")
    return Reached(**json.loads(kept.read_text(encoding="utf-8")))


class Trials:
    """Runs mutants, `workers` at a time; `done` is told of each: how it ended, the test that killed it."""

    def __init__(self, place: Place, reach: Reached, workers: int, done: Done) -> None:
        self._place = place
        self._reach = reach
        self._workers = workers
        self._done = done
        self._sources = place.sources()
        self._killers: dict[tuple[str, str], str] = {}
        """Function -> the test that killed its last mutant: it is asked first."""
        self._running: dict[int, tuple[Mutant, _Child]] = {}

    def run(self, chosen: Sequence[Mutant], ends_at: float) -> None:
        """As many of them as there is time for; a quarter of it for what runs during an import."""
        self._each(
            [one for one in chosen if one.function == MODULE], (3 * monotonic() + ends_at) / 4, self._imported
        )
        inner = [one for one in chosen if one.function != MODULE]
        if inner:
            loop = _Loop(lambda session: self._each(inner, ends_at, self._replaced(session)))
            self._place.pytest(loop, self._place.tests)

    def _replaced(self, session: pytest.Session) -> Trial:
        """What a child does for a mutant inside a function, once everything is collected."""
        items = {item.nodeid: item for item in session.items}
        functions = _functions(f"{self._place.root}/")
        gc.freeze()

        def trial(mutant: Mutant, tests: list[str], note: int) -> None:
            where = (str(self._place.root / mutant.module), mutant.function, mutant.starts)
            new = next(code for code in _codes(self._changed(mutant)) if _where(code) == where)
            if not functions[where]:
                os._exit(_UNFIT)
            for function in functions[where]:
                free = function.__code__.co_freevars
                # Without its super() it has no use for the class, which is still handed to it.
                function.__code__ = new if new.co_freevars else new.replace(co_freevars=free)
            self._run([items[test] for test in tests], session, note)

        return trial

    def _imported(self, mutant: Mutant, tests: list[str], note: int) -> None:
        """What a child does for a mutant of what runs during an import, before any."""
        sys.meta_path.insert(0, _Instead(mutant.module, self._place.root, self._changed(mutant)))

        def chosen(session: pytest.Session) -> None:
            items = {item.nodeid: item for item in session.items}
            self._run([items[test] for test in tests], session, note)

        self._place.pytest(_Loop(chosen), sorted({test.split("::")[0] for test in tests}))
        os._exit(1)  # They could not even be collected.

    def _run(self, items: Sequence[pytest.Item], session: pytest.Session, note: int) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            limit = max(LEAST_S, TIMES * self._reach.seconds.get(item.nodeid, 0.0))
            signal.setitimer(signal.ITIMER_PROF, limit)
            signal.setitimer(signal.ITIMER_REAL, limit + WAITING_S)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os.write(note, item.nodeid.encode())
                os._exit(1)
        os._exit(0)

    def _each(self, chosen: Sequence[Mutant], ends_at: float, trial: Trial) -> None:
        for mutant in chosen:
            tests = self._reach.tests_of(mutant)
            if not tests:
                self._done(mutant, UNREACHED, "")
                continue
            if monotonic() >= ends_at:
                break
            killer = self._killers.get((mutant.module, mutant.function))
            tests.sort(key=lambda test: test != killer)
            child = _Child(lambda note: trial(mutant, tests, note), self._place.build)  # noqa: B023 - forks at once
            self._running[child.pid] = mutant, child
            if len(self._running) >= self._workers:
                self._wait()
        while self._running:
            self._wait()

    def _wait(self) -> None:
        pid, status = os.wait()
        mutant, child = self._running.pop(pid)
        outcome, test = child.ended(status)
        if test:
            self._killers[mutant.module, mutant.function] = test
        self._done(mutant, outcome, test)

    def _changed(self, mutant: Mutant) -> CodeType:
        return changed(mutant, self._sources[mutant.module], str(self._place.root / mutant.module))


class _Child:
    """A process that runs `act` and ends; it may write in a folder of its own only, which goes with it."""

    def __init__(self, act: Callable[[int], None], allowed: Path) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="fasti-mutant-"))
        self._notes, note = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(note)
            return
        try:
            os.setpgid(0, 0)
            tempfile.tempdir = str(self._scratch)
            sys.dont_write_bytecode = True
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            sys.addaudithook(_Guard((str(self._scratch), str(allowed), "/dev/")))
            act(note)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def ended(self, status: int) -> tuple[str, str]:
        """What came of it, by how it ended, and what it noted."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with open(self._notes, "rb") as notes:
            note = notes.read().decode()
        shutil.rmtree(self._scratch, ignore_errors=True)
        code = os.waitstatus_to_exitcode(status)
        assert code != _UNFIT, "a function that the tests have not loaded"
        timed_out = code in (-signal.SIGPROF, -signal.SIGALRM)
        return SURVIVED if code == 0 else TIMED_OUT if timed_out else KILLED, note


class _Guard:
    """An audit hook that lets nothing be written but below some folders."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not (flags or 0) & _TO_WRITE:
                return
        elif event not in _WRITES or (event in ("os.remove", "os.rmdir") and arguments[1] != -1):
            return  # With a folder's handle: a part of an rmtree that was let through.
        else:
            path = arguments[0]
        if not os.path.abspath(os.fsdecode(path)).startswith(self._allowed):
            raise PermissionError(f"{event} of {path!r} by a mutant")


class _Loop:
    """A pytest plugin: when everything is collected, `run` instead of the tests."""

    def __init__(self, run: Callable[[pytest.Session], None]) -> None:
        self._run = run

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:
            self._run(session)
        return True


class _Reach:
    """A pytest plugin: notes in `kept` which lines each test reaches, unless one fails."""

    def __init__(self, place: Place, kept: Path) -> None:
        self._place = place
        self._kept = kept
        self._seconds: dict[str, float] = {}
        include = [f"{place.root / room}/*" for room in place.rooms]
        os.environ["COVERAGE_CORE"] = "ctrace"
        self._coverage = coverage.Coverage(data_file=None, include=include, config_file=False)

    def pytest_collection_finish(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        started = sum(os.times()[:4])
        result = yield
        self._seconds[item.nodeid] = round(sum(os.times()[:4]) - started, 3)
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(path).relative_to(self._place.root)): {
                str(number): sorted(filter(None, tests))
                for number, tests in data.contexts_by_lineno(path).items()
            }
            for path in sorted(data.measured_files())
        }
        if session.testscollected and not session.testsfailed:
            part = self._kept.with_suffix(".part")
            part.write_text(json.dumps({"lines": lines, "seconds": self._seconds}), encoding="utf-8")
            part.rename(self._kept)


class _Instead(MetaPathFinder, Loader):
    """Finds the changed module where the real one would be found."""

    def __init__(self, module: str, root: Path, code: CodeType) -> None:
        self._name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._path = root / module
        self._code = code

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self._path, loader=self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _where(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _functions(root: str) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Every function below `root` that there is, wherever it is held."""
    found = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(root):
            found[_where(thing.__code__)].append(thing)
    return found
