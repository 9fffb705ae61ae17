"""HTTP at the socket: the server, bodies, fields, callers."""
