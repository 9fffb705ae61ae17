"""`python -m benchmarks.pickers --out DIR`: see docs/pickers.md."""

import sys

from benchmarks.pickers.command import main

if __name__ == "__main__":
    sys.exit(main())
