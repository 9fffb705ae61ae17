"""Arguments that name the database that a command reads: `--config FLEET`, or `--store URL` with `--password-env NAME`."""

from __future__ import annotations

import argparse
import os

from router.config import load
from router.config.secrets import secret, store_url
from router.store.database import StoreError, parse_url


def add_store_arguments(parser: argparse.ArgumentParser, *aliases: str, default: str | None = None) -> None:
    """Add the arguments. `aliases` are more names for `--store`; `default` says what the command reads without any (None:
    it needs one)."""
    where = parser.add_mutually_exclusive_group(required=default is None)
    where.add_argument("--config", metavar="FLEET", help="fleet file that names the database")
    forms = "sqlite+aiosqlite:///FILE or postgresql+asyncpg://USER@HOST/NAME"
    where.add_argument(
        "--store",
        *aliases,
        metavar="URL",
        help=f"database: {forms}" + ("" if default is None else f" (default: {default})"),
    )
    parser.add_argument(
        "--password-env", metavar="NAME", help="environment variable with the password for --store"
    )


def store_of(args: argparse.Namespace, default: str = "") -> str:
    """The URL of the database that the arguments name, with its password; `default` if they name none. Raises ConfigError
    for a bad fleet file or password, StoreError."""
    if args.store is None and args.password_env is not None:
        raise StoreError("--password-env needs --store")
    if args.config is not None:
        return store_url(load(args.config), os.environ)
    if args.password_env is None:
        return args.store or default
    password = secret(args.password_env, os.environ, "--password-env")
    return parse_url(args.store).set(password=password).render_as_string(hide_password=False)
