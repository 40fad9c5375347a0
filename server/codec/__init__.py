"""MQTT bytes <-> values, pure: no socket, no session, no clock."""
