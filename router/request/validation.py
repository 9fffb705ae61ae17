"""Checks parsed JSON against pydantic models. The first problem becomes a 400 that names the field in one sentence.

Models are typed dictionaries, checked in strict mode. The checked value is discarded and the client's own value is used, so
an engine gets what the client sent. Fields that a model does not name are not looked at. A sentence never repeats a value:
prompts must not appear in errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from router.core.errors import invalid_request
from router.core.quoting import cut

#: The largest integer that engines, databases and floats all represent exactly.
LARGEST_INTEGER = (1 << 53) - 1
#: Bounds of lists, so that the work for each entry holds the event loop for milliseconds at most.
MAX_MESSAGES = 4096
MAX_PARTS = 8192
MAX_TOOLS = 1024
#: The longest text that only names something.
MAX_NAME_CHARS = 1024

#: Begins the names of kinds in the paths of pydantic's errors.
_TAG = "<kind>"
_UNKNOWN = ""

_SENTENCES = {
    "missing": "is required",
    "bool_type": "must be a boolean",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_parsing": "must be a boolean",
    "int_parsing": "must be an integer",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must not be empty",
    "extra_forbidden": "is not a known field",
}


# --- types -------------------------------------------------------------------------------------------
def says(sentence: str) -> GetPydanticSchema:
    """Annotates a type: whatever is wrong inside it, the error is `sentence` about the field itself."""
    return GetPydanticSchema(
        lambda source, handler: core_schema.custom_error_schema(
            handler(source), custom_error_type="sentence", custom_error_message=sentence
        )
    )


def wrong(sentence: str) -> PydanticCustomError:
    """What a validator function raises: `sentence` about the field."""
    return PydanticCustomError("sentence", "{sentence}", {"sentence": sentence})


def one_of(
    kinds: Mapping[str, Any], kind_of: Callable[[Any], str | None], sentence: str
) -> GetPydanticSchema:
    """Annotates `Any`: `kind_of` selects the model of a value; a value without one is wrong by `sentence`.

    Unlike in a plain union, an error inside names its own place. The names of kinds do not appear in paths.
    """

    def schema(_source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {_TAG + kind: handler.generate_schema(model) for kind, model in kinds.items()},
            lambda value: None if (kind := kind_of(value)) is None else _TAG + kind,
            custom_error_type="sentence",
            custom_error_message=sentence,
        )

    return GetPydanticSchema(schema)


def by_type(kinds: Mapping[str, Any], default: str | None = None) -> GetPydanticSchema:
    """Annotates `Any`: an object whose `type` selects its model. `default` is the type of an object without one."""
    known = core_schema.typed_dict_field(core_schema.literal_schema(list(kinds)))
    unknown = GetPydanticSchema(lambda _source, _handler: core_schema.typed_dict_schema({"type": known}))

    def kind_of(value: Any) -> str | None:
        if not isinstance(value, dict):
            return None
        kind = value.get("type")
        if kind is None and default is not None:
            return default
        return kind if isinstance(kind, str) and kind in kinds else _UNKNOWN

    return one_of({**kinds, _UNKNOWN: Annotated[Any, unknown]}, kind_of, "must be an object")


def _instance(cls: type) -> GetPydanticSchema:
    return GetPydanticSchema(lambda _source, _handler: core_schema.is_instance_schema(cls))


def _short(text: str) -> str:
    if len(text) > MAX_NAME_CHARS:
        raise wrong(f"must have at most {MAX_NAME_CHARS} characters")
    return text


#: A string. pydantic's own `str` copies a subclass (`LongText`), which takes 4 ms for each MB.
Text = Annotated[str, _instance(str), says("must be a string")]
#: A string that only names something.
Name = Annotated[Text, AfterValidator(_short)]
#: An object or list of any content, not copied.
Object = Annotated[dict[str, Any], _instance(dict), says("must be an object")]
List = Annotated[list[Any], _instance(list), says("must be a list")]


# --- checks ------------------------------------------------------------------------------------------
class Check:
    """One model, compiled once. `known` lists the fields of objects, by path, that have no others."""

    def __init__(self, model: Any, known: Mapping[str, Iterable[str]] | None = None) -> None:
        self._validate = partial(TypeAdapter(model).validator.validate_python, strict=True)
        self._known = known or {}

    def __call__(self, value: object, at: str = "") -> Any:
        """The value as the model reads it. `at` is its path in the body. Raises a 400 Refusal."""
        try:
            return self._validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        where = path_of(first["loc"], at)
        sentence = f"{where or 'The body'} {sentence_of(first)}"
        fields = (
            self._known.get(path_of(first["loc"][:-1], at)) if first["type"] == "extra_forbidden" else None
        )
        if fields is not None:
            sentence += f"; known: {', '.join(sorted(fields))}"
        raise invalid_request(f"{sentence}.", where or None)


def sentence_of(problem: ErrorDetails) -> str:
    """What is wrong, as the rest of a sentence that begins with the field."""
    known = _SENTENCES.get(problem["type"])
    context: Mapping[str, Any] = problem.get("ctx", {})
    if known is not None:
        return known.format(**context)
    return (
        problem["msg"]
        .removeprefix("Value error, ")
        .replace("Input should", "must")
        .replace("String should", "must")
    )


def path_of(loc: Sequence[str | int], at: str = "") -> str:
    """A path as errors write it: `messages[3].role`."""
    for part in loc:
        if isinstance(part, str) and part.startswith(_TAG):
            continue
        at += f"[{part}]" if isinstance(part, int) else f".{cut(part)}" if at else cut(part)
    return at
