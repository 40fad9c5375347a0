"""Batch work over whole slices with Spark: a floor above the store, beside the server."""
