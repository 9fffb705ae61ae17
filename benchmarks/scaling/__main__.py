"""`python -m benchmarks.scaling --out DIR`: see docs/scaling.md."""

import sys

from benchmarks.scaling.command import main

if __name__ == "__main__":
    sys.exit(main())
