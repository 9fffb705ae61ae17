"""The fleet file: its models, its reader, and errors that name the line."""

from router.config.errors import ConfigError, Problem
from router.config.instances import InstanceConfig
from router.config.load import load, loads, located, parse_instance, with_address, with_instances
from router.config.models import DiscoveryConfig, FleetConfig, ModelConfig
from router.config.scaling import PoolConfig, ScalingConfig
from router.config.sections import KeyConfig

__all__ = [
    "ConfigError",
    "DiscoveryConfig",
    "FleetConfig",
    "InstanceConfig",
    "KeyConfig",
    "ModelConfig",
    "PoolConfig",
    "Problem",
    "ScalingConfig",
    "load",
    "loads",
    "located",
    "parse_instance",
    "with_address",
    "with_instances",
]
