"""What fasti is compared with: servers that a benchmark starts itself, on loopback, in its own directory.

redis.py        a sorted set by due time and a hash of bodies; append-only file, fsynced before each answer
postgres.py     a table with an index on due; synchronous_commit on
beanstalkd.py   jobs in tubes; binlog, fsynced at each write
mosquitto.py    a plain MQTT broker; acks from RAM
jobs.mjs        load and workers of BullMQ on redis.py, of pg-boss on postgres.py, and of fasti beside them

Each Python module gives a context manager, None where the peer is not installed, and the bytes to say to it.
"""
