"""Our simulator beside Vidur's, over one trace: how fast each is, and whether both simulated the same thing.

    python -m benchmarks.vidur

installs Vidur (github.com/microsoft/vidur, MIT) from PyPI into an environment of its own on the first use. Both
simulators run alternately, each in a new process. Vidur reads the step times of our engine profile (see
`case`), so the costs of a step are the same and the schedulers may differ.
"""
