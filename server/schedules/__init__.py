"""Recurring schedules in the server, and what a new time zone database makes of local times.

    recurring.py         the next occurrence written when the horizon has passed the one before; the calls
    retime_schedules.py  pending occurrences follow their zone
    retime.py            pending messages follow theirs, and then schedules; at start or on a stopped server

When a schedule fires is decided in timeline/fires.py; its row is in shards/schedules.py.
"""
