"""What happens to a request before it is submitted: its caller is checked, and the scheduler's request is built."""
