"""Which zone a wrong name means."""

import re

import pytest

from server.settings.times import TimeError, zone_of
from server.settings.zones import meant


@pytest.mark.parametrize(
    ("name", "zone"),
    [
        ("Europe/Bukarest", "Europe/Bucharest"),
        ("europe/bucharest", "Europe/Bucharest"),
        ("Bucharest", "Europe/Bucharest"),
        ("America/New York", "America/New_York"),
        ("America/Argentina/Buenos_Airez", "America/Argentina/Buenos_Aires"),
        ("utc", "UTC"),
        ("Europe/Atlantis", ""),
        ("GMT+2", ""),
        ("Etc/GMT+99", ""),
        ("", ""),
        ("Europe/" + "B" * 10_000, ""),
    ],
)
def test_the_nearest_name_is_asked_for(name: str, zone: str) -> None:
    assert meant(name) == zone


@pytest.mark.parametrize("name", ["PST", "Wien", "Europe/Moskau", "GMT+2"])
def test_the_refusal_says_which_names_there_are(name: str) -> None:
    said = f"unknown time zone {name!r}; names are those of the IANA database"
    with pytest.raises(TimeError, match=f"^{re.escape(said)}"):
        zone_of(name)


def test_the_refusal_asks() -> None:
    with pytest.raises(
        TimeError, match=r"^unknown time zone 'Europe/Bukarest'; is Europe/Bucharest meant\?$"
    ):
        zone_of("Europe/Bukarest")
