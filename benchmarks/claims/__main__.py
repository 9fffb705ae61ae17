"""`python -m benchmarks.claims`: measures the tables of policies in the documentation, writes them, or checks them."""

import sys

from benchmarks.claims.command import main

if __name__ == "__main__":
    sys.exit(main())
