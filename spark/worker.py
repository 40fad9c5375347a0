"""How an error leaves a Spark worker: in one line, if it says itself what to do.

Spark's Python workers report an error with its traceback, 60 lines of Spark for a mistyped option. They leave
it out if SPARK_HIDE_TRACEBACK is set when the error arrives, and they end after an error. So the variable is
set in that process, for its last moment: tracebacks of a user's own functions stay.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shards.errors import ShardsError

from .errors import SparkError


@contextmanager
def in_a_line() -> Iterator[None]:
    """Errors of a user or of the outside leave without their traceback; our own mistakes keep it."""
    try:
        yield
    except (SparkError, ShardsError, ValueError, OSError):
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
