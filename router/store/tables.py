"""The tables of the store (SQLAlchemy Core), for SQLite and PostgreSQL.

Ids are time-ordered strings, so rows are appended at the end of every index, and ids order rows by time. Times are in
seconds since the epoch, money is in USD, unknown is NULL.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args, get_type_hints

import sqlalchemy as sa

from router.core.types import Outcome
from router.store.entries import REQUEST_COLUMNS
from router.store.records import RequestRecord

metadata = sa.MetaData()

# Otherwise PostgreSQL compares ids by the database's locale, which may not be byte order.
_ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")

_FIELDS = get_type_hints(RequestRecord)
#: The type of a column by that of the record's field.
_KINDS = {bool: sa.Boolean, int: sa.BigInteger, float: sa.Double, str: sa.Text, Outcome: sa.Text}


def _column(name: str) -> sa.Column[Any]:
    """A column for a field of the record."""
    (kind,) = {*(get_args(_FIELDS[name]) or [_FIELDS[name]])} - {NoneType}
    return sa.Column(name, _KINDS[kind], nullable=name not in ("received_at", "outcome"))


#: One row for each request that reached the router.
requests = sa.Table(
    "requests",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    *map(_column, REQUEST_COLUMNS[1:]),
    # Clustered by id: one tree to append to instead of two.
    sqlite_with_rowid=False,
)

#: One row for each time a request was sent to an instance.
attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("request_id", _ID, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("instance", sa.Text),
    sa.Column("model", sa.Text),
    sa.Column("started_at", sa.Double),
    sa.Column("first_token_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("output_tokens", sa.BigInteger),
    sa.Column("cost_usd", sa.Double),
    sa.Column("ended_how", sa.Text),
    sa.Column("error", sa.Text),
    sqlite_with_rowid=False,
)

#: The data of decisions, compact (`router.store.explanations`). `prompt` is NULL unless prompts are kept.
explanations = sa.Table(
    "explanations",
    metadata,
    sa.Column("request_id", _ID, primary_key=True),
    sa.Column("blob", sa.LargeBinary, nullable=False),
    sa.Column("prompt", sa.Text),
)

#: Feedback: quality of an answer in [0, 1] by its caller. A request may have several.
feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("request_id", _ID, nullable=False, index=True),
    sa.Column("received_at", sa.Double, nullable=False),
    sa.Column("key_name", sa.Text),
    sa.Column("quality", sa.Double, nullable=False),
)

#: One row for each process that recorded. `clean` is NULL while it runs (or until its end is accounted for), and false if
#: rows were lost; `lost_*` count them.
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    sa.Column("clean", sa.Boolean),
    sa.Column("arrived", sa.BigInteger, nullable=False, default=0),
    sa.Column("finished", sa.BigInteger, nullable=False, default=0),
    sa.Column("recorded", sa.BigInteger, nullable=False, default=0),
    sa.Column("dropped", sa.BigInteger, nullable=False, default=0),
    sa.Column("lost_finished", sa.BigInteger, nullable=False, default=0),
    sa.Column("lost_in_flight", sa.BigInteger, nullable=False, default=0),
)

#: The spending of each run by day (UTC, `2026-11-22`), key, policy and model ("" for none). Totals of a run only grow and
#: are written with the rows that they count. They stay when the rows are pruned: budgets and spend reports come from here.
spend = sa.Table(
    "spend",
    metadata,
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("run_id", _ID, primary_key=True),
    sa.Column("key_name", sa.Text, primary_key=True),
    sa.Column("policy", sa.Text, primary_key=True),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cost_usd", sa.Double, nullable=False),
)

#: Clients' keys that were made at run time, beside those of the fleet file. Of a key only its SHA-256 is stored. `maker` is
#: the key that made it (NULL: an operator), `settings` the caps as JSON, named as in the fleet file. A revoked key stays, so
#: that no other key gets its name.
keys = sa.Table(
    "keys",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("maker", sa.Text),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("revoked_at", sa.Double),
    sa.Column("changed_at", sa.Double, nullable=False, index=True),
)

# For `since` and retention, which select by time.
sa.Index("requests_received_at", requests.c.received_at)

#: The part of an id that is its time (`Gateway.new_request_id`).
_ID_TIME_CHARS = 15


def first_id(at: float) -> sa.ScalarSelect[str]:
    """The part common to all ids of the millisecond in which the first request since this time came; NULL if none came. It
    bounds a search in the order of ids, which would read all other rows too."""
    first = sa.select(sa.func.substr(requests.c.id, 1, _ID_TIME_CHARS)).where(requests.c.received_at >= at)
    return first.order_by(requests.c.received_at).limit(1).scalar_subquery()
