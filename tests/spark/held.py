"""`python -m tests.spark.held FILE ...`: `python -m spark ...`, held by a task of Spark that makes FILE."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from spark import split
from spark.__main__ import main
from spark.job import Job
from spark.plan import Sketch
from spark.split import sketches
from spark.tasks import each

HELD_S = 600


def held(file: str) -> Callable[[SparkSession, Job], list[Sketch]]:
    def sketches_and_waits(session: SparkSession, job: Job) -> list[Sketch]:
        found = sketches(session, job)

        def wait(_: None) -> dict[str, str]:
            Path(file).touch()
            time.sleep(HELD_S)
            return {}

        each(session, [None], wait)
        return found

    return sketches_and_waits


if __name__ == "__main__":
    with patch.object(split, "sketches", held(sys.argv[1])):
        sys.exit(main(sys.argv[2:]))
