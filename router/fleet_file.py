"""The fleet file of a gateway, with the overrides of its command line."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from router import logs
from router.config import ConfigError, FleetConfig, Problem, load, with_address


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The arguments of `headway serve`. `host` and `port` override the file's."""

    path: str
    host: str | None = None
    port: int | None = None
    log_level: str = "info"

    def read(self) -> FleetConfig:
        """Read the file as it is now. Raises ConfigError."""
        if (path := Path(self.path)).is_fifo() or path.is_char_device():  # reading one may wait without end
            reason = "is not a regular file, so a reload cannot read it again"
            raise ConfigError(self.path, [Problem((), reason)])
        config = load(self.path)
        given = {name: value for name in ("host", "port") if (value := getattr(self, name)) is not None}
        return with_address(config, **given)

    def log(self, config: FleetConfig, worker: int | None = None) -> None:
        """Start to log with the fleet's settings. If there are several workers, each line names its worker."""
        logs.configure(config.observability.logs, self.log_level)
        if worker is not None:
            for handler in logging.getLogger().handlers:
                handler.addFilter(partial(_mark, worker))


def _mark(worker: int, record: logging.LogRecord) -> bool:
    record.fields = {"worker": worker, **getattr(record, "fields", {})}
    return True


def dump(config: FleetConfig) -> dict[str, Any]:
    """A fleet as JSON for another process. Unset fields stay unset. `FleetConfig.model_validate` reads it."""
    return config.model_dump(mode="json", exclude_unset=True)
