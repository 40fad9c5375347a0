"""One Spark session for all tests of the room: starting it takes longer than most of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", "fasti tests") as session:
        yield session


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """To one worker of pytest-xdist, so that there is one session; the cluster to another."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            group = "cluster" if item.path.stem == "test_cluster" else "spark"
            item.add_marker(pytest.mark.xdist_group(group))
