"""The model names that clients may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.core.errors import invalid_request, model_not_found
from router.core.quoting import quoted
from router.request.validation import MAX_NAME_CHARS

#: Any model.
AUTO = "auto"


class ModelNames:
    """The model names that clients may use, resolved ahead of time.

    `models` are the fleet's names, `aliases` maps other names to them, `policies` are the known policies.
    """

    def __init__(self, models: Iterable[str], aliases: Mapping[str, str], policies: Iterable[str]) -> None:
        self.policies = tuple(policies)
        self._aliases = dict(aliases)
        self._none_left = False
        self.models = names = tuple(models)  # all names except aliases
        # The first meaning of a name wins: exact names, aliases, Ollama's default tag, `auto`, then suffixes.
        plain: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
        for alias, name in aliases.items():
            plain.setdefault(alias, (name,))
        for name, found in list(plain.items()):
            plain.setdefault(f"{name}:latest", found)
            plain.setdefault(name.removesuffix(":latest"), found)
        self._single = {name: found[0] for name, found in plain.items()}
        if names:
            plain.setdefault(AUTO, names)
            plain.setdefault(f"{AUTO}:latest", names)
        self._known: dict[str, tuple[tuple[str, ...], str | None]] = {
            name: (found, None) for name, found in plain.items()
        }
        for name, found in plain.items():
            for policy in self.policies:
                self._known.setdefault(f"{name}:{policy}", (found, policy))

    def resolve(self, name: object) -> tuple[tuple[str, ...], str | None]:
        """The models that may serve a request's `model`, and the policy of its suffix.

        Raises a 400 Refusal (`param` "model") for a value that is not a name and for an unknown suffix of a known name, and
        a 404 `model_not_found` for any other unknown name.
        """
        if not isinstance(name, str) or not name:
            raise invalid_request("model must be a non-empty string", "model")
        found = self._known.get(name)
        if found is not None:
            return found
        known = name if len(name) <= MAX_NAME_CHARS else ""  # no name with a suffix is that long
        while ":" in known:
            known = known.rpartition(":")[0]
            if known in self._known:
                suffix = name[len(known) + 1 :]
                raise invalid_request(
                    f"unknown policy {quoted(suffix)} after model {quoted(known)}; "
                    f"known: {', '.join(self.policies)}",
                    "model",
                )
        message = f"The model {quoted(name)} does not exist"
        if self._none_left:
            message += ": the fleet has none of the models that this key may use"
        raise model_not_found(message)

    def spelled(self, name: str) -> str:
        """The known name that differs from this one in case only, as Ollama finds its models; without any, the name itself."""
        if name in self._known:
            return name
        lower = name.lower()
        return next((known for known in self._known if known.lower() == lower), name)

    def only(self, models: frozenset[str]) -> ModelNames:
        """The names of some models, as if there were no others."""
        few = ModelNames(
            (name for name in self.models if name in models),
            {alias: name for alias, name in self._aliases.items() if name in models},
            self.policies,
        )
        few._none_left = not few.models
        return few

    def name_of(self, name: str) -> str | None:
        """The fleet's name for an exact name or alias, without policy suffixes; None if there is none."""
        return self._single.get(name)
