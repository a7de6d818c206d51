"""Every assumption holds in one case and fails in another, and names the number to blame."""

import pytest

from fedgrem.theory.budget import Quantities
from fedgrem.theory.checks import Setting, chance_of_order, check_assumptions, exhaustive_needs, stepwise_needs

FINE = Setting(
    n_sites=10, n_bad=1, n_rows=2000.0, n_components=3, n_parameters=4,
    quantities=Quantities(6.0, 0.2, 0.1, 0.02, 0.2, 0.05, 0.3, 0.1), start_error=0.2,
)  # fmt: skip


def changed(**values):
    inner = {name: value for name, value in values.items() if name in Quantities._fields}
    outer = {name: value for name, value in values.items() if name not in Quantities._fields}
    return FINE._replace(quantities=FINE.quantities._replace(**inner), **outer)


FAILING = {
    "weights": ({"smallest_weight": 0.03}, "smallest weight is 0.030; it should be at least 0.067"),
    "separation": ({"contraction": 0.8, "separation": 5.5}, "separation is 5.50, at which an EM step leaves 0.80"),
    "start": ({"start_error": 3.5}, "off by up to 3.50; it should be at most 3.00"),
    "step size": ({"step_size": 0.3}, "step size is 0.3; it should be between 0.5 and 1"),
    "rows": ({"n_rows": 15.0}, "a site has 15 rows; it should have at least 16"),
    "bad sites": ({"n_bad": 4}, "4 of 10 sites are bad; it should be fewer than a third"),
    "exhaustive alignment": ({"h": 3.0}, "separation is 6.00; it should be above 8.31, because sites differ by 3.00"),
    "stepwise alignment": ({"h": 3.0}, "separation is 6.00; it should be above 9.00 even if the good sites come first"),
}


def test_all_assumptions_hold_for_a_fine_setting():
    assert [check.name for check in check_assumptions(FINE)] == list(FAILING)
    assert all(check.holds for check in check_assumptions(FINE))


@pytest.mark.parametrize("name", FAILING)
def test_an_assumption_that_fails_names_the_number_to_blame(name):
    values, words = FAILING[name]
    found = {check.name: check for check in check_assumptions(changed(**values))}[name]
    assert not found.holds
    assert words in found.verdict


def test_half_of_the_sites_bad_fails_both_alignments():
    found = {check.name: check.holds for check in check_assumptions(changed(n_bad=5))}
    assert not found["exhaustive alignment"]
    assert not found["stepwise alignment"]


def test_the_conditions_of_alignment_are_the_papers():
    assert exhaustive_needs(1.0, 0.5, 0.0) == pytest.approx(2.0 + 4.0 * 0.5)
    assert exhaustive_needs(1.0, 0.5, 0.25) == pytest.approx(2.5 / 0.75 + 5.0 / 0.75 * 0.5)
    assert stepwise_needs(1.0, 0.5, 1, 3) == pytest.approx(2 * 2.0 + 6 * 2.0 * 0.5)
    assert chance_of_order(4, 2, 2) == pytest.approx(1 / 6)
