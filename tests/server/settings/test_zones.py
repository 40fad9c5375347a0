"""Which zone a wrong name means."""

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


def test_the_refusal_asks() -> None:
    with pytest.raises(
        TimeError, match=r"^unknown time zone 'Europe/Bukarest'; is Europe/Bucharest meant\?$"
    ):
        zone_of("Europe/Bukarest")
