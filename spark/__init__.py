"""Batch work over whole slices: a floor above the store, beside the server."""
