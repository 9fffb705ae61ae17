"""HTTP in and out: the server, the relay, and the runner that executes the scheduler's instructions."""
