"""Secrets of a fleet file, which come from the environment, and the URLs that contain one."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from router.config.errors import ConfigError, Problem, masked
from router.config.instances import InstanceConfig
from router.config.models import FleetConfig


def secret(variable: str, environment: Mapping[str, str], place: str) -> str:
    """A secret from the environment. Raises ConfigError with the variable's name, never its value."""
    fault = secret_fault(variable, environment)
    if fault is not None:
        raise ConfigError(place, [Problem((), fault)])
    return environment[variable]


def secret_fault(variable: str, environment: Mapping[str, str]) -> str | None:
    """Why a variable of the environment has no secret that can be used; None if it has one."""
    value = environment.get(variable)
    if not value:
        return f"the environment variable {variable} is not set"
    if value != value.encode(errors="replace").decode():
        return f"the environment variable {variable} is not UTF-8 text"
    return None


def engine_secrets(
    instance: InstanceConfig, environment: Mapping[str, str]
) -> tuple[str | None, dict[str, str]]:
    """An instance's API key (None without one) and its headers. Raises ConfigError."""
    place, variable = f"instances.{instance.name}", instance.api_key_env
    key = None if variable is None else secret(variable, environment, f"{place}.api_key_env")
    headers = instance.headers_env.items()
    return key, {name: secret(each, environment, f"{place}.headers_env") for name, each in headers}


def store_url(config: FleetConfig, environment: Mapping[str, str]) -> str:
    """The store's URL, with the password from the environment. Raises ConfigError."""
    return _with_password("store", config.store.url, config.store.password_env, environment)


def state_url(config: FleetConfig, environment: Mapping[str, str]) -> str:
    """The shared state's URL, with the password from the environment. Raises ConfigError."""
    return _with_password("state", config.state.url, config.state.password_env, environment)


def _with_password(section: str, url: str, variable: str | None, environment: Mapping[str, str]) -> str:
    if variable is None:
        return url
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        reason = f"is not a URL (given: {masked(url, ('url',))})"
        raise ConfigError(section, [Problem(("url",), reason)]) from None
    password = secret(variable, environment, f"{section}.password_env")
    # SQLAlchemy writes a password only with a user name; Redis has passwords without one.
    return parsed.set(username=parsed.username or "", password=password).render_as_string(hide_password=False)
