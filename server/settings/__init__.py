"""Settings: their definitions, and how values are read.

    durations.py  durations as text: to ms
    zones.py   which time zone a wrong name means
    times.py   instants as text: to UTC ms and back
    kinds.py   kinds of values of config.toml: reading and showing
    memory.py  the parts of `limits.memory`
    removed.py  removed settings, and their replacements
    config.py  all settings with defaults and descriptions
    public.py  the addresses that clients get
    reading.py  values from defaults, file, environment and options
    watch.py   rereads files of keys and certificates when they change

Each imports only what stands above it.
"""
