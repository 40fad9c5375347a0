"""One view of a backup and an archive, at moments of a run: each message once, as the account has it."""

import shutil
from collections import Counter

import pytest
from pyspark.sql.types import StructType

from spark.table import FastiSource

from .views import Account, Place, World, compact, expected

MOMENTS = 20


@pytest.fixture(scope="module", params=[1, 2, 3])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    one = World(tmp_path_factory.mktemp("world"), request.param)
    for number in range(MOMENTS):
        one.live()
        one.back_up()
        if one.dice.random() < 0.7:
            one.write_archive()
        if one.dice.random() < 0.2:
            compact(one.archive)
        if one.dice.random() < 0.3:
            one.drop()
        copy = one.folder / f"archive-{number}"
        shutil.copytree(one.archive.storage.root, copy)
        one.archives.append((copy, dict(one.archived)))
    one.close()
    return one


def shown(**options: str) -> Account:
    """What Spark would get, without Spark; no id twice."""
    reader = FastiSource({"columns": "id,at,state", **options}).reader(StructType())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert [name for name, count in Counter(row["id"] for row in rows).items() if count > 1] == []
    return {row["id"]: Place(round(row["at"].timestamp() * 1_000), row["state"]) for row in rows}


def test_a_view_of_any_backup_and_any_archive_is_as_the_account_says(world: World) -> None:
    for moment, (backup, account) in enumerate(world.moments):
        for archive, archived in world.dice.sample(world.archives, 5):
            found = shown(path=backup, archive=str(archive))
            assert found == expected(account, moment, archived), (moment, archive.name)


def test_it_meets_what_it_is_there_for(world: World) -> None:
    """Messages that were withheld and came again, and all states."""
    states = {one.state for _, account in world.moments for one in account.values()}
    assert states == {"pending", "dispatched", "cancelled", "withheld"}
    assert len(world.archived) > 100
