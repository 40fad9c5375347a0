"""Who gets a message: sessions, subscriptions, dispatch and what follows from it. Knows no socket."""
