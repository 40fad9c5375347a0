"""What can be set, and how a value is read.

    times.py   times as people write them: text to UTC ms and back
    kinds.py   how a value of config.toml is read and shown
    memory.py  the parts of `limits.memory`
    removed.py  settings that went, and what took their place
    config.py  what can be set, with its default and in words
    reading.py  where each value is from
    watch.py   files of keys and certificates, read again when they change

Each imports only what stands above it.
"""
