"""The fleet file: its models, its reader, and errors that name the line."""

from router.config.errors import ConfigError, Problem
from router.config.fields import PriceConfig, SloConfig
from router.config.instances import InstanceConfig, ServedConfig
from router.config.load import load, loads, located, parse_instance, with_instances
from router.config.models import DiscoveryConfig, FleetConfig, ModelConfig
from router.config.scaling import PoolConfig, ScalingConfig
from router.config.sections import (
    AuthConfig,
    CostConfig,
    DefaultsConfig,
    HedgeConfig,
    KeyConfig,
    LimitsConfig,
    PredictorsConfig,
    ProbesConfig,
    SchedulingConfig,
    ServerConfig,
    StateConfig,
    StoreConfig,
)

__all__ = [
    "AuthConfig",
    "ConfigError",
    "CostConfig",
    "DefaultsConfig",
    "DiscoveryConfig",
    "FleetConfig",
    "HedgeConfig",
    "InstanceConfig",
    "KeyConfig",
    "LimitsConfig",
    "ModelConfig",
    "PoolConfig",
    "PredictorsConfig",
    "PriceConfig",
    "ProbesConfig",
    "Problem",
    "ScalingConfig",
    "SchedulingConfig",
    "ServedConfig",
    "ServerConfig",
    "SloConfig",
    "StateConfig",
    "StoreConfig",
    "load",
    "loads",
    "located",
    "parse_instance",
    "with_instances",
]
