"""Modes of a data directory: what the server creates, what it narrows, and what it only says."""

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from shards.private import BACKUPS_MAX, narrow, private, warn_of_open

NOBODY = 65_534


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="umask {:03o}".format)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return S_IMODE(path.stat().st_mode)


def made(path: Path, wanted: int) -> Path:
    path.mkdir()
    path.chmod(wanted)
    return path


@pytest.mark.parametrize(
    ("directory", "folder", "file"),
    [(None, 0o700, 0o600), (0o700, 0o700, 0o600), (0o755, 0o700, 0o600), (0o750, 0o750, 0o640)],
)
def test_what_is_created(tmp_path: Path, umask: int, directory: int | None, folder: int, file: int) -> None:
    data = tmp_path / "data"
    if directory is not None:
        made(data, directory)
    with private(data) as before:
        assert before == umask
        (tmp_path / "folder").mkdir()
        (tmp_path / "file").touch()
    assert (mode(tmp_path / "folder"), mode(tmp_path / "file")) == (folder, file)
    assert os.umask(umask) == umask, "it is as it was"


@pytest.mark.parametrize("wide", [0o755, 0o777, 0o701, 0o770, 0o720, 0o704])
def test_a_wide_directory_of_ours_is_narrowed_and_said(
    tmp_path: Path, wide: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = made(tmp_path / "data", wide)
    narrow(data)
    narrow(data)
    assert mode(data) == 0o700
    assert caplog.messages == [f"{data}: mode {wide:04o} let others in: narrowed to 0700"]


def test_a_directory_of_its_group_stays_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = made(tmp_path / "data", 0o750)
    narrow(data)
    assert mode(data) == 0o750
    (line,) = caplog.messages
    assert line.startswith(f"{data}: mode 0750, so group {os.getgid()} can read the data: chmod 700 unless")


OTHER_GROUP = os.getegid() + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to any group")
def test_new_files_of_a_shared_directory_have_its_group(tmp_path: Path) -> None:
    data = made(tmp_path / "data", 0o750)
    os.chown(data, -1, OTHER_GROUP)
    narrow(data)
    (data / "jobs").mkdir()
    (data / "jobs" / "file").touch()
    assert mode(data) == 0o2750
    assert {one.stat().st_gid for one in data.rglob("*")} == {OTHER_GROUP}


def test_a_group_that_new_files_cannot_get_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = made(tmp_path / "data", 0o750)
    monkeypatch.setattr(os, "getegid", lambda: OTHER_GROUP)
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    narrow(data)
    assert caplog.messages[-1].startswith(f"{data}: new files do not get its group {os.getgid()}")


def test_a_directory_of_ours_alone_is_not_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    narrow(made(tmp_path / "data", 0o700))
    narrow(tmp_path / "not there")
    assert not caplog.messages


def test_a_sticky_directory_is_not_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`--data /tmp` does not close /tmp to everybody."""
    data = made(tmp_path / "data", 0o1777)
    narrow(data)
    assert mode(data) == 0o1777
    (line,) = caplog.messages
    assert line.startswith(
        f"{data}: mode 1777 and owner {os.getuid()}, so others can read or change the data"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_directory_of_somebody_else_is_only_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = made(tmp_path / "data", 0o755)
    os.chown(data, NOBODY, NOBODY)
    narrow(data)
    assert mode(data) == 0o755
    (line,) = caplog.messages
    assert line.startswith(f"{data}: mode 0755 and owner {NOBODY}, so others can read or change the data")


def test_a_file_system_that_takes_no_mode_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = made(tmp_path / "data", 0o755)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "chmod", refuse)
    narrow(data)
    (line,) = caplog.messages
    assert "so others can read or change the data" in line


@pytest.mark.parametrize(
    ("root", "backup", "is_said"),
    [(0o755, 0o755, True), (0o755, 0o750, False), (0o755, 0o700, False), (0o700, 0o755, False)],
)
def test_an_old_backup_that_others_can_read_is_said(
    tmp_path: Path, root: int, backup: int, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    backups = made(tmp_path / "backups", root)
    old = made(backups / "monday", backup)
    (backups / "a file").touch(0o644)
    warn_of_open(backups)
    wanted = f"{old}: mode {backup:04o}, so others can read this backup: chmod 700, or 750 for its group"
    assert caplog.messages == ([wanted] if is_said else [])
    assert mode(old) == backup


def test_few_backups_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    backups = made(tmp_path / "backups", 0o755)
    for number in range(5):
        made(backups / f"{number}", 0o700)
    monkeypatch.setattr("shards.private.S_ISDIR", lambda _: looked.append("") or False)
    monkeypatch.setattr("shards.private.BACKUPS_MAX", 3)
    warn_of_open(backups)
    assert len(looked) == 3
    assert BACKUPS_MAX < 10_000
    warn_of_open(tmp_path / "not there")
