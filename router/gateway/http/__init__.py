"""HTTP at the socket: the server, request bodies, responses, host names."""
