"""Endpoints as rows, and their secrets over time."""

from server.settings.config import Webhook
from server.webhook.registry import ROTATION_MS, Registry, rotated, signing
from shards.endpoints import SecretRow
from shards.store import Table
from shards.tables import encode_row
from tests.support.memory_store import MemoryStore

ONE, TWO, THREE = bytes(24), bytes(range(24)), bytes(range(64))


def test_a_secret_that_is_replaced_signs_for_a_day_more() -> None:
    first = rotated([], ONE, 0)
    assert first == [SecretRow(ONE)]
    second = rotated(first, TWO, 1_000)
    assert second == [SecretRow(TWO), SecretRow(ONE, 1_000 + ROTATION_MS)]
    assert [one.secret for one in signing(second, 1_000 + ROTATION_MS - 1)] == [TWO, ONE]
    assert [one.secret for one in signing(second, 1_000 + ROTATION_MS)] == [TWO]


def test_the_same_one_again_changes_nothing_and_no_more_than_two_sign() -> None:
    second = rotated([SecretRow(ONE)], TWO, 0)
    assert rotated(second, TWO, 5_000) == second
    third = rotated(second, THREE, 5_000)
    assert [one.secret for one in third] == [THREE, TWO]
    assert rotated(third, None, 6_000) == []
    assert rotated(third, ONE, 5_000 + ROTATION_MS) == [
        SecretRow(ONE),
        SecretRow(THREE, 5_000 + 2 * ROTATION_MS),
    ]


def test_a_row_that_cannot_be_read_is_no_endpoint() -> None:
    store = MemoryStore()
    batch = store.batch()
    batch.put(Table.ENDPOINTS, b"bad", b"\xff")
    batch.put(Table.ENDPOINTS, b"worse", encode_row(["https://a:b:c/", [], {}, 0, 0, 0, 0]))
    batch.put(Table.ENDPOINTS, b"good", encode_row(["https://x.example/", [], {}, 0, 0, 0, 0]))
    store.write(batch)
    registry = Registry(store, Webhook(), max_endpoints=10)
    assert registry.names() == ["good"]
    assert registry.unreadable == 2
    endpoint = registry.get("good")
    assert endpoint is not None
    assert (endpoint.concurrency, endpoint.timeout_s, endpoint.secrets(0)) == (10, 15.0, [])
