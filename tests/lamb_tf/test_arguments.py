import numpy as np
import pytest

from lamb_tf import arguments


def test_values_come_back_as_python_numbers():
    assert type(arguments.number("x", np.float32(0.5))) is float
    assert type(arguments.count("x", np.int64(3), 0, 9)) is int


@pytest.mark.parametrize("value", [-1, 1.0, float("nan"), "0.5", None])
def test_number(value):
    with pytest.raises(ValueError, match=rf"`x`.*\[0, 1\).*x={value!r}"):
        arguments.number("x", value, below=1.0)


@pytest.mark.parametrize("value", [0, 10, 1.5, True, None])
def test_count(value):
    with pytest.raises(ValueError, match=rf"`x`.*\[1, 9\].*x={value!r}"):
        arguments.count("x", value, 1, 9)
