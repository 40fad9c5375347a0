"""HTTP on floor 3: routes of one resource per file, and the parsing and problem answers that they share."""
