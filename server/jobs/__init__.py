"""Pipeline jobs, the server's side: handed out, leased, taken back."""
