"""What the gateway itself costs: `python -m benchmarks.overhead` (`make bench-overhead`).

Three processes: a canned OpenAI-compatible engine (`upstream`), the gateway as users start it, and a load
generator (`load`). The same load goes to the engine directly, through nginx where it is installed, and through
the gateway, pass by pass in turn, so that a noisy machine hits all alike and only differences and ratios count.
"""
