"""All that an object holds, as bytes: what its own `__eq__` leaves out is in them too."""

from __future__ import annotations

from io import BytesIO
from pickle import Pickler
from types import FunctionType
from typing import Any


def snapshot(value: Any) -> bytes:
    """Equal for two objects of the same types that hold the same, in the same order: attributes, slots, data of their
    classes, items of containers, what functions close over. Raises ValueError for what holds itself."""
    found = BytesIO()
    _Snapshot(found).dump(value)
    return found.getvalue()


class _Snapshot(Pickler):
    """Writes what pickle cannot: local classes and functions. Nothing is ever loaded from it."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.fast = True  # whether two parts are the same object or equal ones makes no difference

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            cells = value.__closure__ or ()
            return tuple, ((value.__qualname__, *(cell.cell_contents for cell in cells)),)
        if isinstance(value, type) and value.__module__.split(".")[0] in ("policies", "tests"):
            return tuple, ((value.__qualname__, *_data(value)),)
        return NotImplemented


def _data(of: type) -> list[tuple[str, Any]]:
    """What a class itself holds beside methods, descriptors and the interpreter's own."""
    plain = (int, float, str, list, dict, set, tuple)
    return [
        (name, each)
        for name, each in vars(of).items()
        if isinstance(each, plain) and not name.startswith("__")
    ]
