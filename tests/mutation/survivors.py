"""The list of mutants that may survive: each has been looked at, and the reason is written down.

`survivors.toml` has a table for each, known by its place and its change as in edits.py:

    [[survivor]]
    module = "timeline/tail.py"
    function = "Tail.append"
    line = "if self.bytes > self.max_bytes or len(self._places) > self.max_entries:"
    change = "> -> >="
    reason = "equivalent: ..."

A reason says `equivalent: ` (nobody can tell the two apart) or `tolerated: ` (somebody could, and it does not
matter). `change = "*"` is every change of that line. An entry that names no mutant is wrong, and so is one
whose mutants are all killed.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .edits import Mutant
from .trial import SURVIVED, UNREACHED

ANY = "*"
KINDS = ("equivalent: ", "tolerated: ")


@dataclass(frozen=True)
class Survivor:
    module: str
    function: str
    line: str
    change: str
    reason: str

    def is_of(self, mutant: Mutant) -> bool:
        place = (mutant.module, mutant.function, mutant.line)
        return place == (self.module, self.function, self.line) and self.change in (ANY, mutant.change)

    def __str__(self) -> str:
        return f"{self.module} {self.function}: {self.line} [{self.change}]"


def read(path: Path) -> list[Survivor]:
    """The list; raises TypeError for an entry with other fields, ValueError for one without a reason."""
    entries = [
        Survivor(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", [])
    ]
    for entry in entries:
        if not entry.reason.startswith(KINDS):
            raise ValueError(f"{entry}: the reason starts with neither of {KINDS}")
    return entries


def nowhere(listed: Iterable[Survivor], mutants: Iterable[Mutant]) -> list[str]:
    """Entries that name no mutant (any more)."""
    by_module: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_module.setdefault(mutant.module, []).append(mutant)
    return [str(one) for one in listed if not any(map(one.is_of, by_module.get(one.module, ())))]


def judged(
    listed: Iterable[Survivor], mutants: Iterable[Mutant], outcomes: Mapping[Mutant, str]
) -> list[str]:
    """What is wrong: entries of no mutant, or of killed ones only; mutants that live and are not listed."""
    listed, mutants = list(listed), list(mutants)
    alive = [mutant for mutant in mutants if outcomes.get(mutant) in (SURVIVED, UNREACHED)]
    wrong = [f"no such mutant: {one}" for one in nowhere(listed, mutants)]
    for one in listed:
        tried = [outcomes.get(mutant) for mutant in mutants if one.is_of(mutant)]
        if tried and all(outcome not in (None, SURVIVED, UNREACHED) for outcome in tried):
            wrong.append(f"listed, but killed: {one}")
    return wrong + [
        f"{outcomes[mutant]}, not listed: {mutant}"
        for mutant in alive
        if not any(one.is_of(mutant) for one in listed)
    ]
