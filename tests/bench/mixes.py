"""Five mixes of three attacks at once, on one server. See attacks.py."""

from functools import partial

from .attacks import long_stored_topics, slow_reader_qos_0, tiny_publishes
from .crowds import bursts, http_batches, many_headers, previews, subscribes_at_once, topic_tree, unread
from .scene import CUT, Attack, Scene, together
from .strangers import calls_without_a_key, dripped_bodies, large_connects, websocket_pings, wrong_keys


def mix_of_strangers(scene: Scene) -> str:
    """Without a key: websocket_pings, large_connects, dripped_bodies."""
    return _at_once(scene, websocket_pings, large_connects, dripped_bodies)


def mix_of_calls(scene: Scene) -> str:
    """Over HTTP: wrong_keys, calls_without_a_key, many_headers."""
    return _at_once(scene, wrong_keys, calls_without_a_key, many_headers)


def mix_of_subscribers(scene: Scene) -> str:
    """What subscribers cost: subscribes_at_once, topic_tree, unread."""
    return _at_once(scene, subscribes_at_once, topic_tree, unread)


def mix_of_publishers(scene: Scene) -> str:
    """What publishers cost: bursts, tiny_publishes, long_stored_topics."""
    return _at_once(scene, bursts, tiny_publishes, long_stored_topics)


def mix_of_memory(scene: Scene) -> str:
    """What fills memory and threads: http_batches, slow_reader_qos_0, previews."""
    return _at_once(scene, http_batches, slow_reader_qos_0, previews)


def _at_once(scene: Scene, *attacks: Attack) -> str:
    remarks: list[str] = []

    def do(attack: Attack) -> None:
        try:
            remarks.append(f"{attack.__name__}: {attack(scene)}")
        except CUT as error:
            remarks.append(f"{attack.__name__}: ended by: {error}")

    together(partial(do, attack) for attack in attacks)
    return "; ".join(remarks)


MIXES: tuple[Attack, ...] = (
    mix_of_strangers,
    mix_of_calls,
    mix_of_subscribers,
    mix_of_publishers,
    mix_of_memory,
)
