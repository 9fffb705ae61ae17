"""The names that clients may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.core.errors import Refusal, invalid_request
from router.core.quoting import quoted
from router.core.types import Outcome

#: Any model that generates text.
AUTO = "auto"
#: The longest name with a suffix that is looked at for its suffix.
_MAX_NAME_CHARS = 1024


class ModelNames:
    """The names that clients may ask for, resolved ahead of time.

    `models` are the fleet's names, `aliases` maps other names to them, `policies` are the known policies,
    `generation` those of `models` that generate text (all, if not given): what `auto` means.
    """

    def __init__(
        self,
        models: Iterable[str],
        aliases: Mapping[str, str],
        policies: Iterable[str],
        generation: Iterable[str] | None = None,
    ) -> None:
        self.policies = tuple(policies)
        self._aliases = dict(aliases)
        self._none_left = False
        names = tuple(models)
        # First come, first served: exact names, aliases, Ollama's default tag, `auto`, then suffixes.
        plain: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
        for alias, name in aliases.items():
            plain.setdefault(alias, (name,))
        for asked, found in list(plain.items()):
            plain.setdefault(f"{asked}:latest", found)
            plain.setdefault(asked.removesuffix(":latest"), found)
        self._single = {asked: found[0] for asked, found in plain.items()}
        every = names if generation is None else tuple(generation)
        self._names, self._generation = names, every
        if every:
            plain.setdefault(AUTO, every)
        self._known: dict[str, tuple[tuple[str, ...], str | None]] = {
            asked: (found, None) for asked, found in plain.items()
        }
        for asked, found in plain.items():
            for policy in self.policies:
                self._known.setdefault(f"{asked}:{policy}", (found, policy))

    def resolve(self, asked: object) -> tuple[tuple[str, ...], str | None]:
        """The models that a request's `model` may be served by, and the policy of its suffix.

        Raises a 400 Refusal (`param` "model") for what is no name or an unknown suffix on a known name, and
        a 404 `model_not_found` for anything else unknown.
        """
        if not isinstance(asked, str) or not asked:
            raise invalid_request("model must be a non-empty string", "model")
        found = self._known.get(asked)
        if found is not None:
            return found
        name = asked if len(asked) <= _MAX_NAME_CHARS else ""  # no name is that long, whatever its suffix
        while ":" in name:
            name = name.rpartition(":")[0]
            if name in self._known:
                suffix = asked[len(name) + 1 :]
                raise invalid_request(
                    f"unknown policy {quoted(suffix)} after model {quoted(name)}; "
                    f"known: {', '.join(self.policies)}",
                    "model",
                )
        message = f"The model {quoted(asked)} does not exist"
        if self._none_left:
            message += ": the fleet has none of the models that this key may use"
        raise Refusal(404, "model_not_found", message, Outcome.REJECTED_INVALID, param="model")

    @property
    def models(self) -> tuple[str, ...]:
        """All names that are no alias."""
        return self._names

    def only(self, models: frozenset[str]) -> ModelNames:
        """The names of some models, as if there were no others: `auto` means those of them that generate text."""
        few = ModelNames(
            (name for name in self._names if name in models),
            {alias: name for alias, name in self._aliases.items() if name in models},
            self.policies,
            (name for name in self._generation if name in models),
        )
        few._none_left = not few._names
        return few

    def name_of(self, asked: str) -> str | None:
        """The fleet's name for one exact name or alias, without policy suffixes; None if there is none."""
        return self._single.get(asked)
