"""Pull: messages are leased over HTTP on request, then acked or returned.

It knows no protocol: server/http/routes/leases.py speaks to it.

    lease_id.py   what was leased, as text that still says so after a restart
    call.py       one call for messages, from its coming to its answer
    seat.py       the place among a group's members for the calls that wait
    pull.py       the verbs: lease, ack, nack, extend, release

Each imports only what stands above it.
"""
