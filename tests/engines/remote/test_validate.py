"""Every way in which a reply can be wrong, with the words that an operator sees."""

import numpy as np
import pytest

from fedgrem.engines.remote.declaration import CENSUS, STEP, Declaration
from fedgrem.engines.remote.validate import check_reply
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import MessageError
from fedgrem.types import Params, Upload
from tests.engines.remote.studies import fields, spec_of

DECLARED = Declaration(spec_of(), 3)
GOOD = Upload(Params(np.array([0.4, 0.6]), np.ones((2, 3))), np.ones(2), np.array(50.0), np.array(-9.5))


def reply_of(task):
    return DECLARED.forms(task)[0].reply


def check(reply, *, exchange=(7, 7), n_rows=50.0):
    sent = encode(reply) if isinstance(reply, Upload) else reply
    return check_reply("north", STEP, sent, reply_of(STEP), exchange=exchange, n_rows=n_rows, gaps=False)


def params(**fields):
    return GOOD._replace(params=GOOD.params._replace(**fields))


def test_a_good_reply_is_taken_as_it_is():
    taken = check(GOOD)
    np.testing.assert_array_equal(taken.params.theta, GOOD.params.theta)
    assert float(taken.n_rows) == 50.0


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (params(theta=np.full((2, 3), np.nan)), "site 'north' sent NaN or infinity in 6 of 6 number.* of params.theta"),
        (params(weights=np.array([np.inf, 0.0])), "sent NaN or infinity in 1 of 2 number.* of params.weights"),
        (GOOD._replace(log_likelihood=np.array(-np.inf)), "NaN or infinity in 1 of 1 number.* of log_likelihood"),
        (params(theta=np.ones((2, 4))), r"site 'north' has params.theta of shape \(2, 4\), expected \(2, 3\)"),
        (params(theta=np.ones((2, 3), np.float32)), "has params.theta of type float32, expected float64"),
        (params(weights=np.array([0.4, 0.5])), "not on the simplex: the least is 0.4 and a sum is 0.9"),
        (params(weights=np.array([-0.2, 1.2])), "not on the simplex: the least is -0.2"),
        (GOOD._replace(n_rows=np.array(0.0)), "says that it has 0 rows, expected more than 0"),
        (GOOD._replace(n_rows=np.array(-5.0)), "says that it has -5 rows"),
        (GOOD._replace(n_rows=np.array(51.0)), "site 'north' now says that it has 51 rows, and said 50 before"),
        (GOOD._replace(extra=GOOD.params), "site 'north': the message also holds extra.weights, extra.theta"),
        ({}, "site 'north': the message lacks params.weights"),
        ({"malformed": {"bytes": b"?"}}, "lacks params.weights, .* and also holds malformed"),
    ],
)
def test_a_bad_reply_is_refused_and_the_site_is_named(reply, message):
    with pytest.raises(MessageError, match=message):
        check(reply)


def test_a_replayed_round_is_refused():
    with pytest.raises(MessageError, match="site 'north' answered exchange 6, expected 7; an old answer is not used"):
        check(GOOD, exchange=(6, 7))


def test_before_round_1_a_start_may_fit_no_row_at_all():
    declared = reply_of("start")
    reply = {
        name: field for name, field in encode(GOOD).items() if name in ("params.weights", "params.theta", "n_rows")
    }
    reply |= fields(log_likelihood=-np.inf, choice=0)
    taken = check_reply("north", "start", reply, declared, exchange=(1, 1), n_rows=50.0, gaps=False)
    assert taken.log_likelihood == -np.inf


@pytest.mark.parametrize(("gaps", "refused"), [(False, True), (True, False)])
def test_an_empty_column_is_known_by_nan_only_where_cells_may_be_missing(gaps, refused):
    declared = reply_of(CENSUS)
    numbers = [np.array(5.0), np.array([0.0, np.nan, 1.0]), np.array([1.0, np.nan, 1.0]), np.array([5.0, 0.0, 5.0])]
    reply = encode(
        declared._replace(
            **dict(zip(declared._fields, [*numbers, np.array(True), np.zeros((3, 64), np.uint8)], strict=True))
        )
    )

    def judge():
        return check_reply("north", CENSUS, reply, declared, exchange=(1, 1), n_rows=None, gaps=gaps)

    if refused:
        with pytest.raises(MessageError, match=r"NaN or infinity in 1 of 3 number.* of mean"):
            judge()
    else:
        assert np.isnan(judge().mean[1])
