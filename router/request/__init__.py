"""What a request asks of the router: routing parameters, facts of its prompt, capabilities it needs."""
