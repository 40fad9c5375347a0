"""Batch work over whole slices with Spark: a floor above the store, beside the server.

Rows are read out of a checkpoint through shards/, in tasks; what a job asks of a running server goes over
HTTP. What stored bytes mean is said in shards/ and timeline/, here only how they become files and columns.

    __main__.py    `python -m spark split|expire`: arguments, exit codes
    submit.py      the same for spark-submit, which takes a file
    run.py         the two jobs from the first call to the last word
    remote.py      the hand-over's calls to a running server
    job.py         a job as the server describes it
    lease.py       keeps a job's lease while Spark works
    session.py     a Spark session that can run this room's tasks
    java.py        the Java that Spark needs
    tasks.py       a list of things as Spark tasks, a line of JSON back from each
    snapshot.py    a checkpoint, a backup or the data of a stopped server, opened to be read

    split.py       the stages of a split: sketch the shards, count what the cuts divide
    plan.py        where to cut a slice, and what each piece holds, pure
    expire.py      the stage of an expiry: each slice into the archive, or only counted
    archive.py     one slice as Parquet files by day, exactly once

    table.py       `spark.read.format("fasti")`: the timeline as rows
    pushdown.py    what need not be read for what is wanted of the table, pure
    columns.py     rows of the timeline as Arrow columns, for the archive and the table

    errors.py      what can go wrong, and the exit code of each
"""
