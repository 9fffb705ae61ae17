"""A worker serves the very fleet that its supervisor read."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from router.config import FleetConfig
from router.fleet_file import FleetFile, dump

FLEETS = sorted(Path(__file__).parents[3].joinpath("fleets").glob("*.yaml"))


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: path.stem)
def test_a_fleet_reaches_another_process_unchanged(path):
    config = FleetFile(str(path), host="::1", port=0).read()
    assert (config.server.host, config.server.port) == ("::1", 0)
    there = FleetConfig.model_validate(orjson.loads(orjson.dumps(dump(config))))
    assert there == config
    assert dump(there) == dump(config)
