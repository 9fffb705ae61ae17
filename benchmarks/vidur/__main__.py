"""`python -m benchmarks.vidur`: see the package."""

import sys

from benchmarks.vidur.command import main

if __name__ == "__main__":
    sys.exit(main())
