"""Operators' changes at run time: an overlay over each replica's own fleet file.

The overlay is one shared document (`State.change`, "fleet"). So a change made at one replica applies to all replicas, and
to those that start later, until the fleet file is read again. As JSON: `{"revision", "reloads", "added": [instance as in
the fleet file], "removed": [name], "draining": [name], "scaled_down": [name], "targets": {"fleet": {...}, "keys": {name: {...}}}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, Self

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from router.config import ConfigError, FleetConfig, InstanceConfig, Problem, with_instances
from router.config.load import in_words
from router.core.errors import invalid_request

#: The shared document's name.
DOCUMENT = "fleet"

Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Overlay:
    """`revision` grows with each change, which orders two documents. `reloads` counts the reloads of all replicas.
    `removed` are instances of the file that do not serve, `added` instances that no file has. `scaled_down` are those of
    `removed` and `draining` that the scaler has chosen, not an operator: it may take them back. `targets` are the changed
    ones, by key (None: the fleet).
    """

    revision: int = 0
    reloads: int = 0
    added: tuple[InstanceConfig, ...] = ()
    removed: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    scaled_down: frozenset[str] = frozenset()
    targets: Mapping[str | None, Values] = field(default_factory=dict)

    def over(self, file: FleetConfig) -> FleetConfig:
        """A fleet file with the changes.

        Raises ConfigError if they do not fit the file, and for an added instance that names a secret or a file of this
        machine that the fleet file does not name. Otherwise anyone who can write the shared document could have a
        secret sent to a URL of theirs.
        """
        if not self.added and not self.removed:
            return file
        if self.added:
            known = file.machine_names()
            for each in self.added:
                strange = each.machine_names() - known
                if strange:
                    places = ", ".join(sorted({f"{member} {name!r}" for member, name in strange}))
                    raise ConfigError(
                        "instance",
                        [
                            Problem(
                                (each.name,),
                                f"the fleet file of this gateway does not have {places}: an added instance may use only what it has",
                            )
                        ],
                    )
        added = {each.name for each in self.added}
        kept = [each for each in file.instances if each.name not in self.removed and each.name not in added]
        if not self.added:
            return file.model_copy(update={"instances": tuple(kept)})
        return with_instances(file, (*kept, *self.added))

    def names(self, file: FleetConfig) -> set[str]:
        """The names of all instances of the file with the changes."""
        return {each.name for each in file.instances} - self.removed | {each.name for each in self.added}

    def next(self, **changes: Any) -> Self:
        """The next overlay, with these fields changed; this one if nothing changes."""
        found = replace(self, **changes)
        found = replace(found, scaled_down=found.scaled_down & (found.draining | found.removed))
        return self if found == self else replace(found, revision=self.revision + 1)

    def reloaded(self) -> Self:
        """An overlay without changes, for files that are read again."""
        return type(self)(self.revision + 1, self.reloads + 1)

    def document(self) -> dict[str, Any]:
        """The overlay as JSON."""
        return {
            "revision": self.revision,
            "reloads": self.reloads,
            "added": [each.model_dump(mode="json", exclude_unset=True) for each in self.added],
            "removed": sorted(self.removed),
            "draining": sorted(self.draining),
            "scaled_down": sorted(self.scaled_down),
            "targets": {
                "fleet": dict(self.targets.get(None, {})),
                "keys": {key: dict(values) for key, values in self.targets.items() if key is not None},
            },
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The overlay in a document; an empty document has no changes. Raises ConfigError for a document that is damaged or of
        another version, and for an instance that is not valid here."""
        if not document:
            return cls()
        try:
            known: dict[str, Any] = {**_DOCUMENT.validate_python(document)}
        except ValidationError as error:
            problems = [Problem(path, reason) for path, reason in in_words(error.errors())]
            raise ConfigError("the shared fleet document", problems) from error
        targets = known.pop("targets")
        of_fleet = {None: targets["fleet"]} if targets["fleet"] else {}
        return cls(**known, targets=targets["keys"] | of_fleet)


class _Targets(TypedDict):
    fleet: Values
    keys: dict[str, Values]


class _Document(TypedDict):
    revision: int
    reloads: int
    added: tuple[InstanceConfig, ...]
    removed: frozenset[str]
    draining: frozenset[str]
    scaled_down: NotRequired[frozenset[str]]  # older replicas do not write it
    targets: _Targets


_DOCUMENT = TypeAdapter(_Document)


def revision_of(document: Mapping[str, Any]) -> int:
    """The document's revision, or 0 if it is invalid."""
    revision = document.get("revision", 0)
    return revision if isinstance(revision, int) else 0


# --- edits: each a function from one overlay to the next ----------------------------------------------------
#: Makes the next overlay from the current one and this replica's fleet file (`Overlay.next`). Raises Refusal.
Edit = Callable[[Overlay, FleetConfig], Overlay]


def adding(added: InstanceConfig) -> Edit:
    """Add an instance. Raises a Refusal (409) if its name is taken."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay:
        if added.name in overlay.names(file):
            raise invalid_request(f"An instance {added.name} is there already", None, "name_taken", 409)
        return overlay.next(added=(*overlay.added, added), draining=overlay.draining - {added.name})

    return edit


def removing(name: str) -> Edit:
    """Remove an instance. Its running requests continue to their end."""
    return lambda overlay, file: _without({name}, overlay, file, scaled_down=overlay.scaled_down - {name})


def draining(name: str) -> Edit:
    """Send nothing more to an instance. It leaves when no replica has requests there. The scaler cannot keep an instance that an
    operator drains (`scaling`), even if the scaler drained it first."""
    return lambda overlay, file: overlay.next(
        draining=overlay.draining | overlay.names(file) & {name}, scaled_down=overlay.scaled_down - {name}
    )


def scaling(keep: Collection[str], drain: Collection[str]) -> Edit:
    """Send requests again to instances that the scaler drains, and drain others for it."""

    def edit(overlay: Overlay, file: FleetConfig) -> Overlay:
        back = overlay.draining & overlay.scaled_down & set(keep)
        more = overlay.names(file).intersection(drain) - overlay.draining
        return overlay.next(draining=overlay.draining - back | more, scaled_down=overlay.scaled_down | more)

    return edit


def restoring(names: Collection[str]) -> Edit:
    """Let instances that were removed serve again, where the fleet file or `discovery` has them."""
    return lambda overlay, _: overlay.next(removed=overlay.removed - set(names))


def drained(names: Collection[str]) -> Edit:
    """Remove those of these instances that still drain."""
    return lambda overlay, file: _without(overlay.draining.intersection(names), overlay, file)


def targeting(key: str | None, values: Mapping[str, float | None]) -> Edit:
    """Change the targets of a key, or of the fleet (None)."""
    return lambda overlay, _: overlay.next(
        targets={**overlay.targets, key: {**overlay.targets.get(key, {}), **values}}
    )


def _without(names: Set[str], overlay: Overlay, file: FleetConfig, **changes: Any) -> Overlay:
    return overlay.next(
        added=tuple(each for each in overlay.added if each.name not in names),
        removed=overlay.removed | {each.name for each in file.instances if each.name in names},
        draining=overlay.draining - names,
        **changes,
    )
