"""Where models run: groups of GPUs, the replicas in them, and how well that serves a list of requests.

`types` is the vocabulary. `hardware_support` says what runs on which kind of GPU, `memory` what a replica takes of
each GPU, `feasibility` why a set of models does not fit and what would change that. `outcomes` simulates a placement,
`candidates` lists ways to divide a cluster. Each planner is one file: `alpaserve`, `evolution`, `split_by_size`,
`local_search` (Headway's own), and, to compare with, `random_search` and `exhaustive`.
"""
