"""Whether a data directory may be ours."""

import os
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from shards.errors import NotOurs
from shards.ours import check_ours
from shards.rocks import RocksStore


def test_a_new_directory_may_be(tmp_path: Path) -> None:
    check_ours(tmp_path / "not" / "there" / "yet", [])
    check_ours(tmp_path, [])
    for name in (".hidden", "keys.toml", "OPTIONS-000007", "LOCK", "000003.dbtmp"):
        (tmp_path / name).touch()
    (tmp_path / "lost+found").mkdir()
    check_ours(tmp_path, [tmp_path / "keys.toml", tmp_path.parent / "config.toml"])


def test_a_store_is_with_whatever_lies_beside_it(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    (tmp_path / "letter.txt").touch()
    check_ours(tmp_path, [])


def test_a_database_without_tables_or_rows_is_a_start_that_was_killed(tmp_path: Path) -> None:
    Rdict(str(tmp_path), Options(raw_mode=True)).close()
    check_ours(tmp_path, [])


@pytest.mark.parametrize("is_flushed", [True, False])
def test_another_program_s_database_is_not(tmp_path: Path, is_flushed: bool) -> None:
    other = Rdict(str(tmp_path), Options(raw_mode=True))
    other.put(b"a", b"b")
    if is_flushed:
        other.flush()
    other.close()
    with pytest.raises(NotOurs, match="another program"):
        check_ours(tmp_path, [])


def test_one_with_other_tables_is_not(tmp_path: Path) -> None:
    other = Rdict(str(tmp_path), Options(raw_mode=True))
    other.create_column_family("theirs", Options(raw_mode=True))
    other.close()
    with pytest.raises(NotOurs, match="another program"):
        check_ours(tmp_path, [])


def test_a_damaged_one_is_for_the_engine_to_refuse(tmp_path: Path) -> None:
    RocksStore(tmp_path).close()
    (tmp_path / "CURRENT").write_bytes(b"nonsense\n")
    check_ours(tmp_path, [])


def test_other_files_are_named(tmp_path: Path) -> None:
    for name in ("PG_VERSION", "base", "global", "pg_hba.conf"):
        (tmp_path / name).touch()
    with pytest.raises(NotOurs, match=r"other files \(PG_VERSION, base, global …\)"):
        check_ours(tmp_path, [tmp_path.parent / "base"])


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for data in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotOurs, match="file is not a directory"):
            check_ours(data, [])


def test_one_that_this_user_may_not_write_names_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shards.ours.os.access", lambda path, mode: False)
    said = f"{tmp_path} belongs to user {tmp_path.stat().st_uid}.*runs as user {os.geteuid()},"
    for data in (tmp_path, tmp_path / "below"):
        with pytest.raises(NotOurs, match=said):
            check_ours(data, [])
