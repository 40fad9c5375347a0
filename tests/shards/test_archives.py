"""Where an archive lies, and whether it can be used."""

import os
from pathlib import Path

import pytest

from shards.archives import local_path, why_not_usable


@pytest.mark.parametrize(
    ("name", "path"),
    [
        *(("/srv/archive", "/srv/archive"), ("/srv/archive/", "/srv/archive")),
        *(("/srv/x/../archive", "/srv/archive"), ("archive", "{cwd}/archive"), ("./a:b", "{cwd}/a:b")),
        *(("../archive", "{cwd}/../archive"), ("/a#b?c%20d", "/a#b?c%20d")),
        *(("file:///srv/a%20b", "/srv/a b"), ("file://localhost/srv", "/srv"), ("file:/srv", "/srv")),
        ("FILE:///srv", "/srv"),
    ],
)
def test_a_name_is_made_absolute_once(name: str, path: str) -> None:
    assert local_path(name) == os.path.normpath(path.replace("{cwd}", str(Path.cwd())))


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", " /srv", "/srv\n", " s3://bucket/x", "~", "~/archive", "~root/archive", "a\0b"),
        *("s3://bucket/x", "s3a://bucket", "gs://b/x", "hdfs://n/x", "abfs://c@a/x", "http://h/x"),
        *("s3:bucket", "s3:/bucket/x", "C:\\archive", "C:/archive"),
        *("file://host/srv", "file:srv", "file:", "file://", "file:///a?b", "file:///a#b", "file:///a%00"),
    ],
)
def test_what_is_no_directory_of_this_machine_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        local_path(name)


def test_an_archive_is_a_directory_or_can_become_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "else")
    (tmp_path / "there").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "there")
    for fine in ("there", "linked", "linked/new", "new/and/deep"):
        assert why_not_usable(tmp_path / fine) == ""
    for wrong in ("file", "file/new", "dangling", "dangling/new"):
        assert "is not a directory" in why_not_usable(tmp_path / wrong)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_archive_can_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "is not writable" in why_not_usable(tmp_path / "new")
    assert why_not_usable(tmp_path / "new", is_written=False) == ""
