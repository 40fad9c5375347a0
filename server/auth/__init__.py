"""Who may do what: keys, passwords, and the topics that each may publish to, subscribe to and be sent.

    rights.py      principals, their scopes, and the topics that their rules allow
    bucket.py      how much of something may be done in a second
    hashes.py      secrets as they are stored: made, checked
    keys_file.py   the server's own keys: read, added, revoked
    mosquitto.py   a mosquitto's password file and ACL file, read
    backoff.py     guesses at a name wait in a network that has shown wrong keys for it
    aside.py       checks in threads, so that they do not hold the loop
    checking.py    slow checks that wait for a thread, in turns by network
    keyring.py     all keys of a server: checked, remembered, read again when their files change
    last_use.py    when each key was last used
    commands.py    `keys add|ls|revoke`

Nothing here knows a door or a message. A door asks the keyring who somebody is, once; what it gets is a
`Principal`, which goes on being right when the files change: its rules are replaced in it, and a key that is
revoked makes it one that may nothing.

Each imports only what stands above it.
"""
