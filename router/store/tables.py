"""The tables of the store (SQLAlchemy Core), for SQLite and PostgreSQL.

Ids are time-ordered strings, so rows are appended at the end of every index, and ids order rows by time. Times are in
seconds since the epoch, money is in USD, unknown is NULL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from router.core.types import Outcome
from router.store.entries import REQUEST_COLUMNS
from router.store.records import RequestRecord

metadata = MetaData()

# Otherwise PostgreSQL compares ids by the database's locale, which may not be byte order.
_ID = String().with_variant(String(collation="C"), "postgresql")

#: The type of a column by that of the record's field.
_KINDS = {bool: Boolean, int: BigInteger, float: Double, str: Text, Outcome: Text}


def _columns(record: type, names: Sequence[str], needed: Collection[str] = ()) -> Iterator[Column[Any]]:
    """Columns for the fields of a record. Those that are `needed` are never NULL."""
    hints = get_type_hints(record)
    for name in names:
        (kind,) = set(get_args(hints[name]) or (hints[name],)) - {type(None)}
        yield Column(name, _KINDS[kind], nullable=name not in needed)


#: One row for each request that reached the router.
requests = Table(
    "requests",
    metadata,
    Column("id", _ID, primary_key=True),
    *_columns(RequestRecord, REQUEST_COLUMNS[1:], {"received_at", "outcome"}),
    # Clustered by id: one tree to append to instead of two.
    sqlite_with_rowid=False,
)

#: One row for each time a request was sent to an instance.
attempts = Table(
    "attempts",
    metadata,
    Column("request_id", _ID, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("instance", Text),
    Column("model", Text),
    Column("started_at", Double),
    Column("first_token_at", Double),
    Column("ended_at", Double),
    Column("output_tokens", BigInteger),
    Column("cost_usd", Double),
    Column("ended_how", Text),
    Column("error", Text),
    sqlite_with_rowid=False,
)

#: The data of decisions, compact (`router.store.explanations`). `prompt` is NULL unless prompts are kept.
explanations = Table(
    "explanations",
    metadata,
    Column("request_id", _ID, primary_key=True),
    Column("blob", LargeBinary, nullable=False),
    Column("prompt", Text),
)

#: Feedback: quality of an answer in [0, 1] by its caller. A request may have several.
feedback = Table(
    "feedback",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("request_id", _ID, nullable=False, index=True),
    Column("received_at", Double, nullable=False),
    Column("key_name", Text),
    Column("quality", Double, nullable=False),
)

#: One row for each process that recorded. `clean` is NULL while it runs (or until its end is accounted for), and false if
#: rows were lost; `lost_*` count them.
runs = Table(
    "runs",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("clean", Boolean),
    Column("arrived", BigInteger, nullable=False, default=0),
    Column("finished", BigInteger, nullable=False, default=0),
    Column("recorded", BigInteger, nullable=False, default=0),
    Column("dropped", BigInteger, nullable=False, default=0),
    Column("lost_finished", BigInteger, nullable=False, default=0),
    Column("lost_in_flight", BigInteger, nullable=False, default=0),
)

#: The spending of each run by day (UTC, `2026-11-22`), key, policy and model ("" for none). Totals of a run only grow and
#: are written with the rows that they count. They stay when the rows are pruned: budgets and spend reports come from here.
spend = Table(
    "spend",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("run_id", _ID, primary_key=True),
    Column("key_name", Text, primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cost_usd", Double, nullable=False),
)

#: Clients' keys that were made at run time, beside those of the fleet file. Of a key only its SHA-256 is stored. `maker` is
#: the key that made it (NULL: an operator), `settings` the caps as JSON, named as in the fleet file. A revoked key stays, so
#: that no other key gets its name.
keys = Table(
    "keys",
    metadata,
    Column("name", Text, primary_key=True),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("maker", Text),
    Column("settings", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("changed_at", Double, nullable=False, index=True),
)

# For `since` and retention, which select by time.
Index("requests_received_at", requests.c.received_at)
