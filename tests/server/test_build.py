"""Which form of the hot modules runs: what is there and what is asked for decide, never an old file."""

import json
import os
import subprocess
import sys
import zipfile
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

from server import build
from server.build import NOTE, ROOMS, SUFFIX, Compiled, choose, digest_of, form

ROOT = Path(__file__).parents[2]
NAMES = ["timeline.hot", "server.delivery.hot"]


@pytest.fixture
def finders(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Those of this process, without ours; what is put there goes again."""
    found = [finder for finder in sys.meta_path if not isinstance(finder, Compiled)]
    monkeypatch.setattr(sys, "meta_path", found)
    return found


def make_rooms(root: Path) -> None:
    for room in ROOMS:
        (root / room).mkdir()
        (root / room / "hot.py").write_text(f"ROOM = {room!r}\n")


def make_compiled(folder: Path, root: Path, **other: object) -> Path:
    folder.mkdir(parents=True)
    note = {"sources": digest_of(root), "suffix": SUFFIX, "modules": NAMES, **other}
    (folder / NOTE).write_text(json.dumps(note))
    return folder


def test_without_compiled_modules_the_sources_run(tmp_path: Path, finders: list[object]) -> None:
    make_rooms(tmp_path)
    before = list(finders)
    choose({}, tmp_path)
    assert (finders, form()) == (before, "pure")


def test_compiled_modules_that_are_there_run(tmp_path: Path, finders: list[object]) -> None:
    make_rooms(tmp_path)
    folder = make_compiled(tmp_path / "server" / "compiled", tmp_path)
    choose({"FASTI_PURE": ""}, tmp_path)
    assert form() == "compiled"
    assert isinstance(finders[0], Compiled)
    found = finders[0].find_spec("server.delivery.hot")
    assert found is not None
    assert isinstance(found.loader, ExtensionFileLoader)
    assert found.origin == str(folder / "server" / "delivery" / f"hot{SUFFIX}")
    assert finders[0].find_spec("server.delivery") is None


def test_one_switch_has_the_sources_run_whatever_is_there(tmp_path: Path, finders: list[object]) -> None:
    make_rooms(tmp_path)
    folder = make_compiled(tmp_path / "server" / "compiled", tmp_path)
    choose({"FASTI_PURE": "1", "FASTI_FAST": str(folder)}, tmp_path)
    assert form() == "pure"
    choose({"FASTI_PURE": "1", "FASTI_FAST": str(tmp_path / "nowhere")}, tmp_path)
    assert form() == "pure"
    assert finders == sys.meta_path


def test_what_make_fast_has_made_runs_where_it_is_named(tmp_path: Path, finders: list[object]) -> None:
    make_rooms(tmp_path)
    folder = make_compiled(tmp_path / "fast", tmp_path)
    choose({}, tmp_path)
    assert form() == "pure"
    choose({"FASTI_FAST": str(folder)}, tmp_path)
    assert form() == "compiled"
    assert len([finder for finder in finders if isinstance(finder, Compiled)]) == 1


@pytest.mark.usefixtures("finders")
def test_what_does_not_fit_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    make_rooms(tmp_path)
    with pytest.raises(ImportError, match="nothing is compiled there; run `make fast`, or set FASTI_PURE=1"):
        choose({"FASTI_FAST": str(tmp_path / "nowhere")}, tmp_path)
    folder = make_compiled(tmp_path / "other", tmp_path, suffix=".cpython-27.so")
    with pytest.raises(ImportError, match=r"it was compiled for \.cpython-27\.so"):
        choose({"FASTI_FAST": str(folder)}, tmp_path)
    folder = make_compiled(tmp_path / "fast", tmp_path)
    for change in ("edited", "added", "removed"):
        source = tmp_path / "shards" / f"{change}.py"
        if change == "edited":
            (tmp_path / "shards" / "hot.py").write_text("ROOM = 'other'\n")
        elif change == "added":
            source.write_text("")
        else:
            (tmp_path / "shards" / "hot.py").unlink()
        with pytest.raises(ImportError, match="other sources; compile it again, or set FASTI_PURE=1"):
            choose({"FASTI_FAST": str(folder)}, tmp_path)
    assert form() == "pure"


@pytest.mark.usefixtures("finders")
def test_not_some_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled module calls another by the layout of its classes."""
    make_rooms(tmp_path)
    folder = make_compiled(tmp_path / "fast", tmp_path)
    monkeypatch.setitem(sys.modules, NAMES[0], build)
    choose({"FASTI_FAST": str(folder)}, tmp_path)
    assert form() == "pure"


def test_these_tests_look_at_what_was_asked_for() -> None:
    """Else the compiled modules would pass unseen."""
    asked = bool(os.environ.get("FASTI_FAST")) and os.environ.get("FASTI_PURE") != "1"
    assert form() == ("compiled" if asked else "pure")
    from timeline import wheel

    assert isinstance(wheel.__spec__ and wheel.__spec__.loader, ExtensionFileLoader) == asked


@pytest.mark.process
def test_a_process_that_is_told_so_runs_the_sources(tmp_path: Path) -> None:
    script = "import server.core, server.build, timeline.wheel as w; print(server.build.form(), w.__file__)"

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        own = {**os.environ, "PYTHONPATH": str(ROOT), **more}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)

    assert run(FASTI_PURE="1").stdout.split() == ["pure", str(ROOT / "timeline" / "wheel.py")]
    refused = run(FASTI_PURE="", FASTI_FAST=str(tmp_path))
    assert refused.returncode
    assert "nothing is compiled there" in refused.stderr


@pytest.mark.process
def test_a_wheel_has_nothing_of_an_earlier_build(tmp_path: Path) -> None:
    """A module that has gone: the compiled ones, which know all sources, would refuse to run with it."""
    text = "[build-system]\nrequires = []\n[project]\nname = 'rooms'\nversion = '1'\n"
    (tmp_path / "pyproject.toml").write_text(text + "[tool.setuptools]\npackages = ['timeline']\n")
    room = tmp_path / "timeline"
    room.mkdir()
    for name in ("__init__", "kept", "deleted"):
        (room / f"{name}.py").write_text("")
    script = "from fast.backend import build_wheel; print(build_wheel('wheels'))"
    own = {**os.environ, "PYTHONPATH": str(ROOT), "FASTI_COMPILE": "", "FASTI_PURE": "1"}

    def built() -> set[str]:
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=True)
        with zipfile.ZipFile(tmp_path / "wheels" / done.stdout.split()[-1]) as wheel:
            return {name for name in wheel.namelist() if name.startswith("timeline/")}

    assert "timeline/deleted.py" in built()
    (room / "deleted.py").unlink()
    assert built() == {"timeline/__init__.py", "timeline/kept.py"}
