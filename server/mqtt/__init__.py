"""MQTT 3.1, 3.1.1 and 5.

The codec is sans-IO and knows bytes and values only:

    reasons.py     reason codes, which packet may carry which, and the errors that carry them
    wire.py        packet type numbers, integers and strings on the wire
    properties.py  the properties of MQTT 5
    packets.py     one frozen struct per packet
    parse.py       body of one packet -> struct, every rule checked
    encode.py      struct -> bytes
    publish.py     the stream decoder with the hot PUBLISH and ack path, and publishes encoded once for many

It does not keep sessions, topic aliases, packet ids in use or keep alive: those are one connection's rules.
"""
