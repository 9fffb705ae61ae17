"""What the router reads of a request: its checked body, routing parameters, facts of its prompt, needed capabilities."""
