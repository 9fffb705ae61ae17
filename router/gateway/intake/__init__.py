"""What is understood of a request before it is submitted: its caller, the fleet's rules, the scheduler's request."""
