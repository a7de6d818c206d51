"""What a page and a text must not claim: centers that nothing stands for, and errors that nobody knows."""

import re

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture, FederatedTableMixture
from fedgrem.report import summarize, summary_text

SITES = np.repeat(["east", "north", "south"], 60)


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    group = generator.integers(2, size=180)
    return np.column_stack([6.0 * group + generator.normal(size=180), generator.random(180) < 0.2 + 0.6 * group])


def page(model, folder):
    return model.report(folder / "page.html").read_text(encoding="utf-8")


def test_where_the_penalty_is_0_no_center_is_shown_anywhere(rows, tmp_path):
    model = FederatedTableMixture(2, penalty=0.0, n_init=2, random_state=0).fit(rows, sites=SITES)
    text, written = summary_text(model), page(model, tmp_path)
    for told in (text, written):
        assert "No center is shown: with a penalty of 0" in " ".join(told.split())
        assert "elsewhere" not in told  # as in "4.2 against 0.3 elsewhere"
    assert "typical weight</td>" not in written
    pulled = FederatedTableMixture(2, penalty=2.0, n_init=2, random_state=0).fit(rows, sites=SITES)
    assert "elsewhere" in summary_text(pulled)
    assert "No center" not in page(pulled, tmp_path)


def test_standard_errors_that_mean_nothing_are_dashes(rows, tmp_path):
    model = FederatedGaussianMixture(2, n_init=2, random_state=0).fit(rows, sites=SITES)
    assert "at most." in summary_text(model)
    assert "standard error -" not in page(model, tmp_path)
    model.center_se_[1, 0] = np.nan
    assert re.search(r"(?m)^x0 .* ± +-$", summary_text(model))
    assert "at most; - for 1 of 4, of which the rows do not tell." in " ".join(summary_text(model).split())
    assert page(model, tmp_path).count("standard error -") == 1
    assert summarize(model).as_plain()["center_errors"][1][0] is None
    model.center_se_[:] = np.nan
    assert "Standard errors: - (the rows do not tell)." in summary_text(model)


def test_an_intercept_of_every_sites_own_has_no_error_that_is_claimed(rows, tmp_path):
    y = rows[:, 0] + np.random.default_rng(1).normal(size=180)
    model = FederatedRegressionMixture(1, intercept="site", random_state=0).fit(rows, y, sites=SITES)
    assert re.search(r"(?m)^intercept +-?[0-9.e-]+ ± +-$", summary_text(model))
    assert re.search(r"(?m)^x0 +[0-9.]+ ± 0\.[0-9]+$", summary_text(model))
    assert page(model, tmp_path).count("standard error -") == 1
