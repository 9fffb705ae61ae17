"""Workloads, the simulator, comparisons, training and measurements; some are programs, `python -m benchmarks.NAME`."""

import sys

from router.extras import refuse_without_extras

if sys.argv[:1] == ["-m"]:  # Python looks for such a program
    sys.excepthook = refuse_without_extras
