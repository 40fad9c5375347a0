"""Stories as lines of steps: `lease m; ack; kill 2` calls these methods of who tells it, one by one."""

from collections.abc import Mapping
from typing import Any

import pytest

HOUR = 3_600_000


class Teller:
    """Its methods are the steps. What stands behind a step is its arguments, `name=value` those by name."""

    def tell(self, story: str) -> None:
        for step in story.split("; "):
            word, *said = step.split()
            more = [one.split("=") for one in said if "=" in one]
            plain = [value(one) for one in said if "=" not in one]
            getattr(self, word)(*plain, **{name: value(text) for name, text in more})


def value(text: str) -> Any:
    """A number, of hours if it ends with h; else the text."""
    digits, unit = text.removesuffix("h"), HOUR if text.endswith("h") else 1
    return int(digits) * unit if digits.lstrip("-").isdigit() else text


def each(stories: Mapping[str, Mapping[str, str]]) -> pytest.MarkDecorator:
    """Runs a test with each `kind` of fault and `story`; of the kind "" are those without one."""
    return pytest.mark.parametrize(
        ("kind", "story"),
        [
            pytest.param(kind, story, id=f"{kind or 'right'}: {name}")
            for kind, of_it in stories.items()
            for name, story in of_it.items()
        ],
    )
