"""Pull: messages are leased over HTTP on request, then acked or returned.

It knows no protocol: server/http/routes/leases.py calls it.

    lease_id.py   lease ids: text that stays valid after a restart
    call.py       one call for messages, from arrival to answer
    consumer.py   the group member for calls that wait
    pull.py       the verbs: lease, ack, nack, extend, release

Each imports only what stands above it.
"""
