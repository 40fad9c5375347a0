"""The properties of a packet as values; `properties.py` has their bytes.

A file of its own, because what uses it may be compiled, and a Struct must not be.
"""

import msgspec


class Properties(msgspec.Struct, frozen=True, gc=False):
    """Properties of one packet; None is absent. Intervals and keep alive are seconds, sizes bytes."""

    payload_format: int | None = None
    message_expiry: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()
    topic_alias: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    session_expiry: int | None = None
    receive_maximum: int | None = None
    maximum_packet_size: int | None = None
    topic_alias_maximum: int | None = None
    request_problem_info: bool | None = None
    request_response_info: bool | None = None
    auth_method: str | None = None
    auth_data: bytes | None = None
    will_delay: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    response_info: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    wildcard_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_available: bool | None = None

    def user(self, key: str) -> str | None:
        """Value of the first user property named `key`."""
        for name, value in self.user_properties:
            if name == key:
                return value
        return None
