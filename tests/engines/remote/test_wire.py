import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedgrem.engines.remote.declaration import read_names, write_names
from fedgrem.engines.remote.wire import DTYPES, decode, encode, size
from fedgrem.errors import MessageError
from fedgrem.fit.tasks import StartReply
from fedgrem.types import Params, named_arrays

leaves = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(np.dtype(dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
messages = st.builds(
    StartReply,
    st.builds(Params, leaves, leaves, st.none() | leaves),
    n_rows=leaves,
    log_likelihood=leaves,
    choice=leaves,
)


@given(messages)
def test_what_is_encoded_comes_back_bit_for_bit(message):
    back = decode(encode(message), message)
    assert type(back) is type(message)
    for (name, ours), (same, theirs) in zip(named_arrays(back), named_arrays(message), strict=True):
        assert name == same
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


@given(leaves)
def test_bytes_are_little_endian_whatever_the_machine(array):
    big = array.astype(array.dtype.newbyteorder(">"))
    assert encode(Params(big, big))["theta"] == encode(Params(array, array))["theta"]


@given(st.lists(st.text(max_size=12).filter(lambda name: "\0" not in name), max_size=5))
def test_names_of_columns_come_back(names):
    assert read_names(write_names(names)) == names


def good():
    return encode(Params(np.ones(2), np.ones((2, 3))))


LIKE = Params(np.zeros(()), np.zeros(()))


def changed(**field):
    fields = good()
    fields["theta"] = fields["theta"] | field
    return fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("rows", "the message is a str, expected named arrays"),
        ({"weights": good()["weights"]}, "lacks theta; expected exactly weights, theta"),
        (good() | {"rows": good()["theta"]}, "also holds rows; expected exactly weights, theta"),
        (good() | {"theta": [1.0]}, "theta is not an array of shape, dtype and bytes"),
        (changed(dtype="|O"), r"theta has the type '\|O', expected one of <f8"),
        (changed(dtype=["<f8"]), "theta has the type"),
        (changed(shape=[2, -3]), "theta has no valid shape"),
        (changed(shape=[2, 2.0]), "theta has no valid shape"),
        (changed(shape=[1] * 9), "theta has no valid shape"),
        (changed(shape=[2**31]), "theta has no valid shape"),
        (changed(shape=[2, 4]), r"theta has 48 bytes, expected 64 for shape \(2, 4\) and type <f8"),
        (changed(bytes="abc"), "theta has str bytes, expected 48"),
    ],
)
def test_what_was_not_declared_is_refused_by_name(fields, message):
    with pytest.raises(MessageError, match=message):
        decode(fields, LIKE)


def test_objects_do_not_travel():
    with pytest.raises(MessageError, match="arrays of type object do not travel"):
        encode(Params(np.array([{}]), np.ones(1)))


def test_size_counts_the_bytes_of_arrays():
    assert size(good()) == 8 * (2 + 6)
