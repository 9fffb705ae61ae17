"""Records of requests and their decisions, and the state that replicas share."""
