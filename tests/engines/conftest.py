"""Real engines: collected only when asked for (`make test-engines` sets HEADWAY_TEST_ENGINES=1)."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("HEADWAY_TEST_ENGINES") == "1" else ["test_*.py"]
