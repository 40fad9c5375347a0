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

Above all entries stands `judged`: the modules whose mutants were all tried and looked at. There a survivor
that is not listed is wrong; elsewhere it is told only, until somebody has judged that module and adds it.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .edits import Mutant
from .trial import SURVIVED, UNREACHED

ANY = "*"
ALIVE = (SURVIVED, UNREACHED)
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


@dataclass(frozen=True)
class Judged:
    """What is known of the mutants that live."""

    modules: tuple[str, ...]
    entries: tuple[Survivor, ...]

    def lists(self, mutant: Mutant) -> bool:
        return any(entry.is_of(mutant) for entry in self.entries)


def read(path: Path) -> Judged:
    """The list; raises TypeError for an entry with other fields, ValueError for one without a reason."""
    stored = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = tuple(Survivor(**entry) for entry in stored.get("survivor", []))
    for entry in entries:
        if not entry.reason.startswith(KINDS):
            raise ValueError(f"{entry}: the reason starts with neither of {KINDS}")
    return Judged(tuple(stored["judged"]), entries)


def nowhere(judged: Judged, mutants: Iterable[Mutant]) -> list[str]:
    """Modules and entries that name no mutant (any more)."""
    by_module: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        by_module.setdefault(mutant.module, []).append(mutant)
    gone = [module for module in judged.modules if module not in by_module]
    return gone + [
        str(one) for one in judged.entries if not any(map(one.is_of, by_module.get(one.module, ())))
    ]


def unlisted(judged: Judged, outcomes: Mapping[Mutant, str]) -> list[Mutant]:
    """Those that live and have not been judged, in the order of their places."""
    alive = [mutant for mutant, outcome in outcomes.items() if outcome in ALIVE and not judged.lists(mutant)]
    return sorted(alive, key=lambda mutant: (mutant.module, mutant.number))


def wrong(judged: Judged, mutants: Iterable[Mutant], outcomes: Mapping[Mutant, str]) -> list[str]:
    """Entries of no mutant, or of killed ones only; in judged modules, what lives and is not listed."""
    mutants = list(mutants)
    found = [f"no such mutant: {one}" for one in nowhere(judged, mutants)]
    for one in judged.entries:
        tried = [outcomes.get(mutant) for mutant in mutants if one.is_of(mutant)]
        if tried and all(outcome is not None and outcome not in ALIVE for outcome in tried):
            found.append(f"listed, but killed: {one}")
    new = [mutant for mutant in unlisted(judged, outcomes) if mutant.module in judged.modules]
    return found + [f"{outcomes[mutant]}, not listed: {mutant}" for mutant in new]
