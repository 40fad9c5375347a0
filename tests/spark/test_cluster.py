"""Split and compaction on a real standalone cluster, with the rooms sent to its workers."""

from pathlib import Path

import pytest

from spark.__main__ import main
from tests.support.soak import SOAK

from .cluster import cluster, run_there, submit_there
from .served import far, served
from .test_archiving import World
from .test_end_to_end import COUNT, overfull


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1: test_end_to_end.py runs the same jobs in one process")
def test_split_archive_and_compact_on_a_standalone_cluster(tmp_path: Path) -> None:
    """Split by the program itself, compaction through spark-submit. What is between needs no cluster."""
    settings = {"slices.archive": str(tmp_path / "archive")}
    with served(tmp_path / "data", "--clock", "simulated", settings=settings) as server:
        world = World(server, tmp_path / "archive")
        # Before the cluster: its clock stands still, and the dues are reckoned from ours.
        server.put([{**one, "deliver_in": one["deliver_in"] - 20 * 86_400} for one in far(COUNT)])
        world.put_so_far = [f"m{n}" for n in range(COUNT)]
        with cluster(tmp_path) as address:
            given = ("--server", server.url)
            done = run_there(tmp_path, "split", *given, "--slice", overfull(server), "--master", address)
            assert done.returncode == 0, done.stderr
            assert f"{COUNT} rows cut into 6 slices" in done.stdout
            assert server.payloads() == world.put_so_far
            world.pass_time(9 * 86_400 + 43_200)
            for _ in range(12):
                world.pass_time(2 * 3_600)
                assert main(["archive", *given]) == 0
            world.pass_time(86_400)
            world.put(1)
            assert main(["archive", *given]) == 0
            before = len(world.files())
            done = submit_there(tmp_path, address, "compact", *given)
            assert done.returncode == 0, done.stderr
        assert len(world.files()) < before
        assert world.archived() == world.put_so_far
        assert world.faults() == []
        programs = [path for path in (tmp_path / "work").iterdir() if path.name.startswith("app-")]
        assert len(programs) == 2
