"""A worker serves the very fleet that its supervisor read."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from router.config import ConfigError, FleetConfig
from router.fleet_file import FleetFile, dump

FLEETS = sorted(Path(__file__).parents[3].joinpath("fleets").glob("*.yaml"))


@pytest.mark.parametrize("path", FLEETS, ids=lambda path: path.stem)
def test_a_fleet_reaches_another_process_unchanged(path):
    config = FleetFile(str(path), host="::1", port=0).read()
    assert (config.server.host, config.server.port) == ("::1", 0)
    there = FleetConfig.model_validate(orjson.loads(orjson.dumps(dump(config))))
    assert there == config
    assert dump(there) == dump(config)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        # The system takes it for all addresses.
        ({"host": ""}, "host: must have at least 1 character (given: '')"),
        ({"host": "http://gate:80"}, "host: must be a name or an address, without scheme and port"),
        ({"port": 65536}, "port: must be less than or equal to 65535 (given: 65536)"),
    ],
)
def test_an_address_of_the_command_line_is_checked_as_that_of_the_file(given, reason):
    with pytest.raises(ConfigError) as refused:
        FleetFile(str(FLEETS[0]), **given).read()
    assert str(refused.value).startswith(f"command line: {reason}")


def test_a_pipe_as_the_fleet_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(pipe := tmp_path / "fleet.yaml")
    with pytest.raises(ConfigError) as refused:
        FleetFile(str(pipe)).read()
    assert str(refused.value) == f"{pipe}: is not a regular file, so a reload cannot read it again"
