"""Split and expire on a real standalone cluster, with the rooms sent to its workers."""

from pathlib import Path

import pytest

from tests.support.soak import SOAK

from .cluster import cluster, run_there, submit_there
from .served import Served, far, served
from .test_end_to_end import COUNT, overfull


@pytest.mark.skipif(not SOAK, reason="FASTI_SOAK=1: test_end_to_end.py runs the same jobs in one process")
def test_split_and_expire_on_a_standalone_cluster(tmp_path: Path) -> None:
    """Split by the program itself, expire through spark-submit."""
    with served(tmp_path / "data", "--clock", "simulated") as server:
        # Before the cluster: its clock stands still, and the dues are reckoned from ours.
        server.put([{**one, "deliver_in": one["deliver_in"] - 20 * 86_400} for one in far(COUNT)])
        with cluster(tmp_path) as address:
            _split_and_expire(server, address, tmp_path)


def _split_and_expire(server: Served, address: str, tmp_path: Path) -> None:
    given = ("--server", server.url)
    done = run_there(tmp_path, "split", *given, "--slice", overfull(server), "--master", address)
    assert done.returncode == 0, done.stderr
    assert f"{COUNT} rows cut into 6 slices" in done.stdout
    assert server.payloads() == [f"m{n}" for n in range(COUNT)]
    assert sum(piece["count"] for piece in server.slices()) == COUNT
    server.remote.call("POST", "/v1/clock:advance", {"by": "P14D"})
    done = submit_there(tmp_path, address, "expire", *given)
    assert done.returncode == 0, done.stderr
    assert server.slices() == []
    programs = [path for path in (tmp_path / "work").iterdir() if path.name.startswith("app-")]
    assert len(programs) == 2
