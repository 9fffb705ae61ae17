"""What predicts while serving, and what it learns from the requests that it sees."""
