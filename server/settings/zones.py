"""Which time zone was meant: `Europe/Bucharest` for `Europe/Bukarest`, and for `Bucharest`.

The names are listed once, 30 ms. Each line of a batch may have a wrong zone, so a search has to be short, 0.1
ms: a city is compared with those of its region that have the same first letter and nearly the same length, a
dozen of 600. Without a region it has to be the name of a city. What was found is kept, as the lines of one
program are wrong in the same way.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import available_timezones

CHARS_MAX = 64
LENGTHS = 2
"""Letters that a city may be longer or shorter."""
LIKENESS = 0.8
_ANY = ""
"""In place of a region."""


def meant(name: str) -> str:
    """The nearest name of a zone; empty if none is near."""
    return _nearest(name) if len(name) <= CHARS_MAX else ""


@lru_cache(maxsize=256)
def _nearest(name: str) -> str:
    region, city = _parts(name.replace(" ", "_"))
    near: dict[str, str] = {}
    for length in range(len(city) - LENGTHS, len(city) + LENGTHS + 1):
        near |= _cities().get((region, city[:1], length), {})
    found = [city] if region == _ANY else get_close_matches(city, near, 1, LIKENESS)
    return near.get(found[0], "") if found else ""


@lru_cache(maxsize=1)
def _cities() -> Mapping[tuple[str, str, int], Mapping[str, str]]:
    """From city to zone: by region, first letter and length, and once more by letter and length alone."""
    cities: dict[tuple[str, str, int], dict[str, str]] = {}
    for name in sorted(available_timezones()):
        region, city = _parts(name)
        # `GMT+2` means two hours east to people, and west to `Etc/GMT+2`.
        if region != "etc" and "gmt" not in city:
            for where in {region, _ANY}:
                cities.setdefault((where, city[:1], len(city)), {})[city] = name
    return cities


def _parts(name: str) -> tuple[str, str]:
    region, _, city = name.lower().rpartition("/")
    return region, city
