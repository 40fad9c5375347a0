"""Subscriptions of clients: checked, added, ended; also ended when the keys no longer allow them.

A filter that begins with `$share/` makes the session a member of a group (membership.py). Any other filter
leads messages to the session itself (router.py). Retained messages of a new subscription follow the answer
to the client, before anything new.
"""

import logging
from collections.abc import Iterator
from enum import Enum, auto

from timeline.filters import SHARE_PREFIX, covers, parse_share
from timeline.horizon import Horizon
from timeline.position import Position
from timeline.session import USUAL, Subscription, Terms
from timeline.slices import Directory

from ..auth.rights import Rights
from ..engine.commit_hook import ignore
from ..observe.logs import by, clean
from ..settings.config import Config
from .burials import GROUP_DELETED, Burials
from .membership import Membership
from .retries import Retries
from .router import Router
from .sessions import Sessions
from .shared import DOTS
from .subscriber import Subscriber
from .terms import UNSAID, Keeping, TermsForbidden

log = logging.getLogger(__name__)


class Denial(Enum):
    """Reason why a subscription is refused."""

    NOT_ALLOWED = auto()
    OVER_QUOTA = auto()


class Subscriptions:
    """Adds and ends the subscriptions of sessions."""

    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        groups: Membership,
        router: Router,
        horizon: Horizon,
        directory: Directory,
        burials: Burials,
        retries: Retries,
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._cursors = sessions.cursors
        self._groups = groups
        self._router = router
        self._horizon = horizon
        self._directory = directory
        self._burials = burials
        self._retries = retries

    def denial(self, text: str, topic_filter: str, subscriber: Subscriber) -> Denial | None:
        """Why the client may not subscribe to a filter; None: it may. `text`: the filter with `$share`."""
        session, is_shared = subscriber.session, text.startswith(SHARE_PREFIX)
        is_named = not is_shared or parse_share(text)[0] not in DOTS
        if not (is_named and self.may_ask(topic_filter, subscriber.rights)):
            return Denial.NOT_ALLOWED
        if text not in session.subscriptions and not self._sessions.quota.admits(
            session, text, subscriber.owner
        ):
            return Denial.OVER_QUOTA
        if is_shared and self._groups.refusal(text, subscriber.owner):
            return Denial.OVER_QUOTA
        return None

    def check(self, text: str, terms: Terms, keeping: Keeping, rights: Rights | None) -> Keeping:
        """The terms of a SUBSCRIBE to a group, signed. Raises TermsError if they contradict the group's other
        terms, TermsForbidden if the client may not set them."""
        group = self._groups.get(text)
        if keeping != UNSAID:
            (UNSAID if group is None else group.keeping).changed_by(keeping).checked()
        name, topic_filter = parse_share(text)
        keeping = self._groups.signed(keeping, rights)
        if name is None or rights is None:
            return keeping
        if group is None:
            is_forbidden = (terms, keeping) != (USUAL, UNSAID) and not rights.may_receive_some(topic_filter)
        else:
            is_forbidden = group.is_news(terms, keeping) and not group.obeys(rights)
        if is_forbidden:
            raise TermsForbidden(
                "terms",
                f"of {text[:128]!r} may be set only by its owner or a client that may receive all of it",
            )
        return keeping

    def may_ask(self, topic_filter: str, rights: Rights | None) -> bool:
        """Whether these rights, and `mqtt.deny_subscribe`, allow a subscription to the filter."""
        if rights is not None and not rights.may_subscribe(topic_filter):
            return False
        return not any(covers(denied, topic_filter) for denied in self._config.mqtt.deny_subscribe)

    def subscribe(
        self,
        subscriber: Subscriber,
        wanted: Subscription,
        replay_from: Position | None,
        keeping: Keeping = UNSAID,
    ) -> bool:
        """Add or replace a subscription, at once. True if the filter is new to the session.

        `replay_from`: where to begin to read; None: now. `keeping`: what the client says of its group.
        """
        if replay_from is not None:
            replay_from = max(replay_from, self._directory.floor)
        if wanted.filter not in subscriber.session.subscriptions:
            self._sessions.quota.add(wanted.filter, subscriber.owner)
        if wanted.filter.startswith(SHARE_PREFIX):
            subscriber.session.subscribe(wanted, self._horizon.position)
            if replay_from is not None and wanted.filter not in self._groups:
                wanted.since = min(wanted.since, replay_from)
            is_new = self._groups.join(subscriber, wanted.filter, wanted, keeping)
            subscriber.cursor.is_entangled = True
            subscriber.dirty.add(subscriber.groups[wanted.filter])
            return is_new
        known = subscriber.session.subscriptions.get(wanted.filter)
        if known is not None:
            self._router.discard(subscriber, wanted.filter)
        if replay_from is not None:
            replay_from = max(replay_from, self._burials.passing)
        subscriber.session.subscribe(wanted, self._horizon.position, replay_from)
        if replay_from is not None:
            self._retries.set_back(subscriber)
        self._router.add(subscriber, wanted)
        if not subscriber.session.tailing:
            self._groups.read_on(subscriber)
        return known is None

    def hold_retained(self, subscriber: Subscriber) -> None:
        """A SUBSCRIBE is being worked off: retained messages wait for `send_retained`."""
        subscriber.unanswered += 1

    def ask_retained(self, subscriber: Subscriber, subscription: Subscription) -> None:
        """Send the retained messages of this subscription, before anything new."""
        subscriber.session.fall_behind(self._horizon.position)
        subscriber.retained_queue.add(subscription)

    def send_retained(self, subscriber: Subscriber) -> None:
        """After the SUBACK: send the retained messages."""
        subscriber.unanswered -= 1
        if not subscriber.session.tailing:
            self._groups.read_on(subscriber)

    def unsubscribe(self, subscriber: Subscriber, topic_filter: str) -> bool:
        """Remove a subscription. False: there was none."""
        if not subscriber.session.unsubscribe(topic_filter):
            return False
        self._sessions.quota.discard((topic_filter,), subscriber.owner)
        if topic_filter in subscriber.groups:
            self._groups.leave(subscriber, topic_filter, is_given_up=True)
            return True
        subscriber.retained_queue.discard(topic_filter)
        self._router.discard(subscriber, topic_filter)
        return True

    # -- keys have changed

    def keep_allowed(self, known: Subscriber, rights: Rights) -> None:
        """The session is another key's now: end the subscriptions that the new key does not allow."""
        for text in list(known.session.subscriptions):
            self._end_denied(known, text, rights)

    def review(self) -> Iterator[None]:
        """The keys have changed: end every subscription that its session's key no longer allows.

        One step for each subscription, as there may be a million. Subscriptions of a revoked key stay: the
        next key of that name finds those that it may have.
        """
        for subscriber in list(self._sessions):
            has_ended = False
            for text in list(subscriber.session.subscriptions):
                yield
                rights = subscriber.rights
                if rights is None or not rights.is_live:
                    break
                has_ended = self._end_denied(subscriber, text, rights) or has_ended
            if has_ended and subscriber.session.is_persistent:
                self._cursors.persist(subscriber, ignore)
        for group in list(self._groups):
            yield
            # A group that stays until it is deleted stays: whoever may subscribe to it takes its messages.
            rights = None if group.members or group.keeping.is_lasting else group.rights
            if rights is not None and rights.is_live and not rights.may_subscribe(group.filter):
                log.info(
                    "group %s: ended, %s may not subscribe",
                    clean(group.text),
                    rights.name,
                    extra=by(rights.name),
                )
                self._groups.end(group, GROUP_DELETED)

    def _end_denied(self, subscriber: Subscriber, text: str, rights: Rights) -> bool:
        """End a subscription that these rights do not allow. False: they do."""
        if rights.may_subscribe(parse_share(text)[1]) or not self.unsubscribe(subscriber, text):
            return False
        names = (clean(subscriber.session.client_id), clean(text), rights.name or "nobody")
        log.info("session %s: subscription to %s ended, %s may not", *names, extra=by(rights.name))
        return True
