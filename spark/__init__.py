"""Batch work over whole slices with Spark: a floor above the store, beside the server.

Rows are read out of a checkpoint through shards/, in tasks; what a job asks of a running server goes over
HTTP. What stored bytes mean is said in shards/ and timeline/, here only how they become files and columns.

    __main__     `python -m spark split|expire`: arguments, exit codes
    submit       the same for spark-submit, which takes a file
    run          the two jobs from the first call to the last word
    remote       the hand-over's calls to a running server
    job          a job as the server describes it
    lease        keeps a job's lease while Spark works
    session      a Spark session that can run this room's tasks
    java         the Java that Spark needs
    tasks        a list of things as Spark tasks, a line of JSON back from each
    snapshot     a checkpoint, a backup or the data of a stopped server, opened to be read

    split        the stages of a split: sketch each shard, write each child
    plan         where to cut a slice: quantiles, pure
    expire       the stage of an expiry: each slice into the archive, or only counted
    archive      one slice as Parquet files by day, exactly once

    table        `spark.read.format("fasti")`: the timeline as rows
    pushdown     what need not be read for what is wanted of the table, pure
    columns      rows of the timeline as Arrow columns, for the archive and the table

    errors       what can go wrong, and the exit code of each
"""
