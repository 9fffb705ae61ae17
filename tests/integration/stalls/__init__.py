"""Whatever is sent, the event loop is held for a moment at most, and nothing fails inside."""
