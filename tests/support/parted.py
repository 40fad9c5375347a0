"""A server whose parts of `limits.memory`, and fixed bounds, a test has set one by one.

    PARTS='{"limits.queued": 1000, "wheel.max_bytes": "4MiB"}' python -m tests.support.parted --data DIR

`ServerProcess` starts it in place of the plain server where its settings name such a bound.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from server import __main__
from server.settings.config import Config
from server.settings.kinds import read_size
from server.settings.reading import load

VARIABLE = "PARTS"


def is_part(key: str) -> bool:
    """Whether `section.attribute` is no setting."""
    section, _, attribute = key.partition(".")
    part: Any = getattr(Config(), section)
    found = part.__dataclass_fields__.get(attribute)
    return found is not None and "kind" not in found.metadata


def parted(config: Config, environ: Mapping[str, str]) -> Config:
    """With the parts that the environment names."""
    for key, value in json.loads(environ.get(VARIABLE, "{}")).items():
        section, _, attribute = key.partition(".")
        part: Any = getattr(config, section)
        made: Any = replace(part, **{attribute: read_size(value)})
        config = replace(config, **{section: made})
    return config


def main(arguments: Sequence[str] | None = None) -> int:
    def loaded(*given: Any) -> tuple[Config, dict[str, str]]:
        config, origins = load(*given)
        return parted(config, os.environ), origins

    with patch.object(__main__, "load", loaded):
        return __main__.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
