"""Floor 1: what a calendar of messages is, as pure values and functions. No clock, file, socket or chance."""
