"""Sites of few rows: whose start they take, what their weights become, and that their noise stays put."""

import numpy as np
import pytest

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.families.base import kept_by_few
from fedgrem.families.gaussian import Gaussian
from fedgrem.families.regression import LinearRegression
from fedgrem.fit.conversation import converse
from fedgrem.fit.few_rows import has_enough, lean_on_others, least_rows
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.starts import find_starts
from fedgrem.types import Params


def params(n_sites, n_components, size, noise):
    weights = np.full((n_sites, n_components), 1.0 / n_components)
    return Params(weights, np.zeros((n_sites, n_components, size)), np.zeros((n_sites, *noise)))


def test_a_response_tells_of_one_parameter_and_a_row_of_as_many_as_it_has_columns():
    assert least_rows(LinearRegression(noise="shared"), params(4, 3, 5, (1, 1))) == 16.0
    assert least_rows(Gaussian(), params(4, 3, 5, (1, 15))) == 6.0


def test_the_larger_half_of_the_sites_has_rows_enough_however_few_these_are():
    some = params(4, 3, 5, (1, 15))
    assert has_enough(Gaussian(), some, np.array([2.0, 5.0, 6.0, 7.0])).tolist() == [False, False, True, True]
    assert has_enough(Gaussian(), some, np.array([2.0, 2.0, 3.0, 4.0])).tolist() == [False, False, True, True]
    assert has_enough(Gaussian(), some, np.full(4, 2.0)).all()


def test_a_site_of_few_rows_takes_the_common_start_and_has_no_say_in_it():
    generator = np.random.default_rng(0)
    middles = np.array([[-4.0, 0.0], [4.0, 0.0]])
    large = [middles[generator.integers(2, size=60)] + generator.normal(size=(60, 2)) for _ in range(5)]

    def starts(rows):
        data = Federation.from_sites([f"site-{k}" for k in range(len(rows))], rows)
        spec = FitSpec(Gaussian(), FedGrEM(), 2, 2.0)
        return converse(find_starts(spec, data.names), InProcess(data, spec))[0]

    alone, found = starts(large), starts([*large, np.array([[50.0, 50.0]]), np.array([[-70.0, 9.0]])])
    np.testing.assert_allclose(found.params.theta[:5], alone.params.theta, rtol=1e-6)
    common = np.median(found.params.theta[:5], axis=0)
    assert np.abs(found.params.theta[5:] - common).max() < 0.5
    np.testing.assert_array_equal(found.params.theta[5], found.params.theta[6])
    assert found.choice[5:].tolist() == [1, 1]


def test_weights_of_few_rows_are_shrunk_by_how_much_the_others_differ():
    n_rows, enough = np.array([400.0] * 6 + [3.0]), np.arange(7) < 6

    def shrunk(width):
        own = np.array([0.5 - width, 0.5 + width] * 3)
        weights = np.append(np.column_stack([own, 1.0 - own]), [[1.0, 0.0]], axis=0)
        found = lean_on_others(weights, n_rows, enough)
        np.testing.assert_array_equal(found[:6], weights[:6])
        return found[6]

    np.testing.assert_allclose(shrunk(0.0), [0.5, 0.5])
    # Excess variance 4 * 0.3^2 - 1/400, so that the others' weights are worth 1 / 0.3575 - 1 = 1.797 rows.
    np.testing.assert_allclose(shrunk(0.3)[0], (3.0 + 1.797 * 0.5) / 4.797, atol=1e-3)


def test_weights_stay_where_all_sites_have_rows_enough():
    weights = np.array([[1.0, 0.0], [0.2, 0.8]])
    assert lean_on_others(weights, np.array([9.0, 9.0]), np.array([True, True])) is weights


@pytest.mark.parametrize("shared", [True, False])
def test_a_site_keeps_its_noise_with_fewer_than_two_rows_for_every_component(shared):
    held = np.array([[2.0, 1.9], [2.0, 2.0]])
    found, last = np.ones((2, 1 if shared else 2, 3)), np.zeros((2, 1 if shared else 2, 3))
    kept = kept_by_few(found, last, held)
    assert np.all(kept[0] == 0.0)
    assert np.all(kept[1] == 1.0)
    assert kept_by_few(found, None, held) is found
