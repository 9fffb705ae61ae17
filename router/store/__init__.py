"""Records of what was decided and what happened, and state shared by replicas."""
