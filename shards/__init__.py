"""The only room that touches disk: rows, slices' shards, group commits, recovery."""
