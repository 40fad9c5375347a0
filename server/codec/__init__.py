"""MQTT 3.1, 3.1.1 and 5 as bytes and values: pure, without a socket, a session or a clock.

    reasons.py     reason codes, and which packet may carry which
    errors.py      what is wrong with what came, with the reason code to answer it with
    wire.py        packet type numbers, integers and strings on the wire
    packets.py     one frozen struct per packet, and the properties of MQTT 5 as values
    properties.py  their bytes
    parse.py       body of one packet -> struct, every rule checked
    publish.py     the stream decoder with the hot PUBLISH and ack path, and publishes encoded once for many
    encode.py      struct -> bytes, for what a server sends

Each imports only what stands above it, and nothing of the server. The codec does not keep sessions, topic
aliases, packet ids in use or keep alive: those are one connection's rules (server/mqtt).
"""
