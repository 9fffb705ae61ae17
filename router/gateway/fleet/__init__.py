"""The fleet while it serves: instances, probes, operators' changes, other replicas."""
