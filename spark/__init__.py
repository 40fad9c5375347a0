"""Batch work over whole slices, plain or with Spark: a floor above the store, beside the server.

Programs and tasks read rows from a checkpoint through shards/; calls to a running server go over HTTP.
shards/ and timeline/ define the stored bytes; this room only turns them into files and columns.

    __main__.py    `python -m spark archive|expire|compact|split|verify`: arguments, exit codes
    submit.py      the same for spark-submit, which takes a file
    run.py         the jobs from first to last call
    remote.py      calls to a running server
    job.py         a job as the server describes it
    lease.py       keeps a job's lease during the work
    session.py     a Spark session that can run this room's tasks
    java.py        the Java that Spark needs
    tasks.py       work over a list as Spark tasks, each returning a line of JSON
    snapshot.py    opens a checkpoint, a backup or the data of a stopped server, read-only

    split.py       a split: sketch the shards, count rows around the cuts
    plan.py        cut points of a slice, and counts of each piece; pure
    archive.py     a commit of the archive: the files of a closed span of positions
    parquet.py     one file of it: row groups, summed and read back
    publish.py     whose archive it is; the manifest of a commit, and what follows
    compact.py     a day's files as few, sorted ones
    iceberg.py     the archive as tables of a catalog
    expire.py      an expiry: read the archive back, or count each slice

    storage.py     files of an archive, in a directory or an object store
    manifests.py   what an archive has: commits, files that count, what is covered
    verify.py      reads a whole archive, and names what is wrong

    table.py       `spark.read.format("fasti")`: the timeline as rows
    view.py        a backup and an archive as one table, each message once
    archived.py    rows of an archive's files, as Spark gets them
    stream.py      `spark.readStream.format("fasti.archive")`: what the archive gets, commit by commit
    pushdown.py    options of a read, and filter pushdown: what need not be read; pure
    worker.py      errors leave a Spark worker in one line
    columns.py     rows of the timeline as Arrow columns, for the archive and the table
    records.py     stored messages decoded a batch at a time, as arrays
    deliveries.py  how deliveries ended, as Arrow tables

    errors.py      errors, and their exit codes
"""
