"""What of `router` is compiled (`router.compiled`)."""
