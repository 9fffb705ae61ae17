import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.result_lines import result_lines

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text()


@given(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))
def test_nothing_is_lost(value: object) -> None:
    assert orjson.loads(result_lines(value)) == orjson.loads(orjson.dumps(value))


def test_a_list_of_plain_values_is_one_line() -> None:
    text = result_lines({"draws": np.array([1.5, 2.0]), "rows": [[1, "a, [b]"], []], "none": {}})
    assert text.splitlines() == [
        "{",
        ' "draws": [1.5, 2.0],',
        ' "rows": [',
        '  [1, "a, [b]"],',
        "  []",
        " ],",
        ' "none": {}',
        "}",
    ]
