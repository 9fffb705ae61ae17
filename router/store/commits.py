"""How the writer process commits rows: each once, in one transaction with the sums that count it.

A batch may come again: its commit had no answer, the process before this one was killed, or the rows of a killed run were
spooled after they had been committed. Then the rows that are there are looked up first, and only the others are written and
counted. Most batches come once, so this is done only where a batch cannot be written as it is, and for killed runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from router.store.entries import (
    ATTEMPT_COLUMNS,
    EXPLANATION_COLUMNS,
    REQUEST_COLUMNS,
    Entry,
    Row,
    corrected,
)
from router.store.totals import Amounts, spending


def _insert(table: str, columns: Sequence[str], on_conflict: str = "") -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}){on_conflict}"  # noqa: S608 (our own names)


_INSERT_REQUESTS = _insert("requests", REQUEST_COLUMNS)  # refuses rows that are there
_INSERT_ATTEMPTS = _insert("attempts", ATTEMPT_COLUMNS, " ON CONFLICT DO NOTHING")
_INSERT_EXPLANATIONS = _insert("explanations", EXPLANATION_COLUMNS, " ON CONFLICT DO NOTHING")
_SPEND_KEY = ("day", "run_id", "key_name", "policy", "model")
_ADD_SPENDING = _insert(
    "spend",
    (*_SPEND_KEY, *Amounts._fields),
    f" ON CONFLICT ({', '.join(_SPEND_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = spend.{name} + excluded.{name}" for name in Amounts._fields),
)
_COUNT = (
    "UPDATE runs SET arrived = coalesce(?, arrived), finished = coalesce(?, finished),"
    " recorded = recorded + ?, dropped = coalesce(?, dropped) WHERE id = ?"
)


class Run(NamedTuple):
    """A run, with its counters for the table `runs` (None: they stay as they are)."""

    id: str
    arrived: int | None = None
    finished: int | None = None
    dropped: int | None = None


class Written(NamedTuple):
    """The result of a batch: rows that are `new`, and rows that no database accepts. The others were there before."""

    new: int = 0
    refused: int = 0


class Database(Protocol):
    """A connection that opens itself when a transaction begins."""

    #: What it raises while it is away.
    errors: tuple[type[Exception], ...]

    def is_bad_value(self, error: Exception) -> bool:
        """Whether the same rows would fail again."""

    def begin(self, run_id: str) -> None:
        """Begin a transaction, which waits until no other writes rows of this run."""

    def present(self, ids: Sequence[str]) -> set[str]:
        """The ids that have a row."""

    def execute(self, sql: str, rows: Iterable[Row]) -> None:
        """Run a statement, with a `?` for each parameter, once for each row of parameters."""

    def commit(self) -> None:
        """End the transaction."""

    def abandon(self) -> None:
        """Give up the transaction, if there is one. Raises nothing."""


class Commits:
    """Commits batches to one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What `write` raises while the database is away, or the memory is used up."""
        return (*self._database.errors, MemoryError)

    def write(self, run: Run, entries: Sequence[Entry]) -> Written:
        """Commit entries. A batch with a bad entry is halved until the entry is found, which is then corrected. Raises one
        of `errors` if the database is away; then a part may be committed."""
        if run.arrived is not None:
            try:
                return Written(new=self._commit(run, entries, all_new=True))
            except Exception as error:  # mostly, a row is there
                if self._is_away(error) or not entries:
                    raise
        return self._write(run, entries)

    def _write(self, run: Run, entries: Sequence[Entry]) -> Written:
        """The same, for entries some of which may be there, or be bad."""
        try:
            return Written(new=self._commit(run, entries))
        except Exception as error:
            # Drivers raise kinds that they do not name, and one bad row must not hold up the others.
            if self._is_away(error) or not entries:
                raise
        if len(entries) > 1:
            half = len(entries) // 2
            first, second = self._write(run, entries[:half]), self._write(run, entries[half:])
            return Written(first.new + second.new, first.refused + second.refused)
        try:
            return Written(new=self._commit(run, [corrected(entries[0])]))
        except Exception as error:
            if self._is_away(error):
                raise
        return Written(refused=1)

    def _is_away(self, error: Exception) -> bool:
        return isinstance(error, self.errors) and not self._database.is_bad_value(error)

    def _commit(self, run: Run, entries: Sequence[Entry], *, all_new: bool = False) -> int:
        database = self._database
        try:
            database.begin(run.id)
            new = entries if all_new else self._new(entries)
            if new:
                self._insert(new)
                # Always in the same order, so that no two transactions wait for each other's rows.
                database.execute(
                    _ADD_SPENDING,
                    [
                        (day, run.id, *others, *amounts)
                        for (day, *others), amounts in sorted(spending(new).items())
                    ],
                )
            database.execute(_COUNT, [(run.arrived, run.finished, len(new), run.dropped, run.id)])
            database.commit()
        except BaseException:
            database.abandon()
            raise
        return len(new)

    def _new(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries that are not there, each once."""
        by_id: dict[str, Entry] = {}
        for entry in entries:
            by_id.setdefault(entry.id, entry)
        for present in self._database.present(list(by_id)) if by_id else ():
            del by_id[present]
        return list(by_id.values())

    def _insert(self, entries: Sequence[Entry]) -> None:
        for sql, rows in (
            (_INSERT_REQUESTS, [entry.request for entry in entries]),
            (_INSERT_ATTEMPTS, [attempt for entry in entries for attempt in entry.attempts]),
            (
                _INSERT_EXPLANATIONS,
                [entry.explanation for entry in entries if entry.explanation is not None],
            ),
        ):
            if rows:
                self._database.execute(sql, rows)
