"""Which model runs on which GPUs: plans for a cluster, each scored by the simulator with the policy that will serve."""
