"""One MQTT connection, from its socket to what it asks of delivery.

Inwards, in the order that bytes come:

    listeners.py    where MQTT listens: TCP, TLS, websockets; which connections there is room for
    redirecting.py  listeners of a node that does not lead
    websocket.py    MQTT over websockets: between the socket and the link
    handshake.py    the request that makes a connection a websocket, and its answer
    frames.py       websocket frames: bytes -> payloads, and back
    link.py         the asyncio protocol round a connection: reads, holds, writes, lingers
    state.py        `Connection`: the rules of one connection, packets in, calls to delivery out
    parts.py        the parts of the server that connections call
    backlog.py      packets that wait for their turn, and how many bytes they came in
    authenticator.py  authentication of a CONNECT: name and key
    opening.py      CONNECT: what is refused, and what CONNACK grants
    subscribing.py  SUBSCRIBE and UNSUBSCRIBE: each filter checked, granted or refused
    pending_ack.py  a publish that waits for its answer
    inbound.py      publishes: read, handed on together, answered in their order
    publish_requests.py  a PUBLISH read as a publish request: when, where, under which key
    acks.py         acks of deliveries, and the packet ids of QoS 2

Outwards:

    outbox.py       what one connection is sent: the link that delivery sees
    forms.py        a message as PUBLISH bytes, made once per form

    peer.py         who is at the other end, for the log

It says what MQTT says: packets, levels, reason codes, aliases, packet ids, keep alive. It does not decide who
gets a message, what is stored, or when a session ends (server/delivery), nor what a key may (server/auth);
bytes are read and written elsewhere (server/codec). Of the ground floor it knows configuration, clock, log,
times, kinds of values, accepting, certificates and browsers only.
"""
