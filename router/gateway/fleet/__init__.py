"""The fleet as it serves: its rules, instances and probes, changes at run time, other replicas."""
