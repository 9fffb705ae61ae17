"""The section `scaling` of the fleet file: pools of alike instances, and what starts and stops these."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from router.config.fields import Count, InstanceName, Int, NotNegative, Positive, Section, Text
from router.config.instances import InstanceConfig, ProfileName, TemplateConfig
from router.config.marks import AT_START

#: The most instances of a pool: decisions are made for so many candidates (docs/performance.md).
MOST_INSTANCES = 4096
#: In `command` and `environment` of a pool: the port that the engine is to listen on, on 127.0.0.1.
PORT = "{port}"
#: There too: the number of the engine in its pool, from 0; no two that run have the same.
NUMBER = "{number}"

VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class PoolConfig(Section):
    """Instances of one model on one kind of hardware; every instance of the fleet with both counts in the pool.

    `instance` is what a new one is: an instance without name and url. `profile` is the engine profile to decide by (None:
    that of the model and the hardware). A pool with `min_instances` 0 scales to zero, and requests for its model wait
    until an instance is ready. For `cooldown_s` after it grew, it does not shrink. `cold_start_s` is the time until a new
    instance is ready, `warm_start_s` that of one whose weights are in the machine's page cache. `command` and
    `environment` start an engine (`processes`), with `{port}` for its port on 127.0.0.1 and `{number}` for its number
    in the pool, from 0. `deployment` is the Deployment with the pool's pods (`kubernetes`).
    """

    name: InstanceName
    instance: TemplateConfig
    profile: ProfileName | None = None
    min_instances: Annotated[Int, Field(ge=0)] = 1
    max_instances: Annotated[Count, Field(le=MOST_INSTANCES)] = 1
    cooldown_s: NotNegative = 300.0
    cold_start_s: Positive = 60.0
    warm_start_s: Positive = 20.0
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    environment: dict[VariableName, str] = Field(default_factory=dict)
    deployment: InstanceName | None = None

    @model_validator(mode="after")
    def _is_one_pool(self) -> Self:
        if len(self.instance.serves) != 1:
            raise PydanticCustomError("pool", "a pool's instance serves one model")
        if self.instance.hardware is None:
            raise PydanticCustomError("pool", "a pool's instance needs its hardware")
        if self.min_instances > self.max_instances:
            raise PydanticCustomError("pool", "min_instances is greater than max_instances")
        if self.command is not None and not any(
            PORT in each for each in (*self.command, *self.environment.values())
        ):
            raise PydanticCustomError(
                "pool", "command needs {port} in an argument or in a value of environment", {"port": PORT}
            )
        return self

    @property
    def model(self) -> str:
        """The model that the pool serves."""
        return next(iter(self.instance.serves))

    @property
    def profile_name(self) -> str:
        """The engine profile (`MODEL@HARDWARE`) to decide by."""
        own = self.instance.at("instance", "http://instance").profile_name(self.model)
        assert own is not None  # noqa: S101 (its hardware is known)
        return self.profile or own

    def has(self, instance: InstanceConfig) -> bool:
        """Whether an instance counts in this pool."""
        return self.model in instance.serves and instance.hardware_name == self.instance.hardware


class ScalingConfig(Section):
    """How many instances each pool is to have. Every `interval_s` the `scaler`, with its `settings`, decides this from the
    load, and the `actuator` carries it out: `observe` only shows it (metrics and `GET /admin/scaling`), `processes`
    starts and stops engines on this machine, `kubernetes` scales Deployments."""

    scaler: Literal["queue", "concurrency", "kpa", "headway", "none"] = "headway"
    actuator: Annotated[Literal["observe", "processes", "kubernetes"], AT_START] = "observe"
    interval_s: Positive = 15.0
    settings: dict[str, Any] = Field(default_factory=dict)
    pools: tuple[PoolConfig, ...] = ()

    def holding(self) -> list[PoolConfig]:
        """The pools whose requests wait while no instance is there, because one will be started."""
        return [pool for pool in self.pools if self.actuator != "observe" or not pool.min_instances]
