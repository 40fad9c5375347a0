"""Bodies and answers of the HTTP API as values: read, checked, shown."""
