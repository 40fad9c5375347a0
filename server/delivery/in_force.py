"""Which terms are in force for a message at a session or group."""

from timeline.session import USUAL

from ..settings.config import Sessions
from .place import Place
from .router import Router
from .shared import Group
from .terms import InForce, in_force


class TermsInForce:
    """Looks them up: they count at the next event, and are never stored with a delivery."""

    def __init__(self, settings: Sessions, router: Router) -> None:
        self._settings = settings
        self._router = router

    def of(self, place: Place, topic: bytes) -> InForce:
        """The terms of messages of that topic for a session or group."""
        if isinstance(place, Group):
            return place.in_force
        own = self._router.route(topic).get(place, ())
        said = next((one.terms for one in own if one.terms != USUAL), USUAL)
        return in_force(said, self._settings, is_group=False)
