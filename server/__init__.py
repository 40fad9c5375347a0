"""Floor 3: sockets, the clock and the wiring between them."""
