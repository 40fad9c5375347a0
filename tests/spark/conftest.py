"""One Spark session for all tests of the room: starting it takes longer than most of them.

With several processes tests/conftest.py keeps them in one.
"""

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", "fasti tests") as session:
        yield session
    # It says goodbye when it is collected, to a stream that pytest has closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
