"""Several numbers of components over a network: every fit is scored, and the runs are compared."""

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture
from fedgrem.cli.sites_fit import DONE, RUNS, next_fit, save_fitted, search_of
from fedgrem.engines.flare.kit import Study
from fedgrem.engines.flare.operate import Fit, begin, read_fit, run_folder
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.roster import Rules
from fedgrem.engines.remote.run import fit_over_network
from fedgrem.estimators.network import spec_for
from fedgrem.estimators.selection import candidate
from fedgrem.models import load_model
from tests.engines.remote.studies import NAMES, AtHand, rows_of

OPTIONS = {"n_components": [2], "covariance_type": "identity", "n_init": 2, "max_rounds": 6, "random_state": 5}


def carried_out(study, run, folder, spoil=None):
    """A run, with its sites at hand."""
    asked = read_fit(study, run)
    at_hand = AtHand(folder, asked.spec, NAMES, spoil, run=run)
    return fit_over_network(asked.spec, list(NAMES), at_hand, run_folder(study, run), asked.rules)


@pytest.mark.filterwarnings("ignore:not settled")
def test_the_runs_of_a_search_lead_to_the_in_process_choice(tmp_path):
    model = FederatedGaussianMixture(**OPTIONS)
    expected = FederatedGaussianMixture(**OPTIONS).fit({name: rows_of(name)[0] for name in NAMES})
    study = Study(tmp_path / "study", "localhost", 1, NAMES)
    more = {"regression": False, "options": OPTIONS, "out": str(tmp_path / "model"), RUNS: [], DONE: False}
    rules = Rules(min_sites=2, deadline=0.3, patience=0.0)
    asked = Fit(spec_for(candidate(model, 2), candidate=True), list(NAMES), rules, more=more)
    run = begin(study, asked)
    assert read_fit(study, run) == asked
    carried_out(study, run, tmp_path)
    asked = next_fit(study, asked, run)
    assert (asked.more[RUNS], asked.more[DONE]) == ([run], True)
    assert (asked.spec.n_components, asked.spec.score, asked.spec.tol) == (2, True, 1e-6)
    finished = carried_out(study, begin(study, asked), tmp_path)
    save_fitted(finished, asked.more, study)
    chosen = load_model(tmp_path / "model")
    assert chosen.n_components_ == 2
    for name, column in expected.selection_.items():
        np.testing.assert_allclose(chosen.selection_[name], column, rtol=1e-8, err_msg=name)


def test_a_site_that_does_not_say_how_well_it_fits_is_not_counted(tmp_path):
    model = FederatedGaussianMixture(**OPTIONS)
    study = Study(tmp_path / "study", "localhost", 1, NAMES)
    rules = Rules(min_sites=2, deadline=0.3, patience=0.0)
    run = begin(study, Fit(spec_for(candidate(model, 2), candidate=True), list(NAMES), rules))

    def silent(site, task, exchange, answer):
        return Answer(None, exchange, trouble="gone") if (site, task) == ("north", "score") else answer

    result = carried_out(study, run, tmp_path, silent).result
    assert np.isnan(result.log_likelihood).tolist() == [False, True, False]
    curve = search_of(study, model, {RUNS: [run]}).curve
    per_row = (result.log_likelihood / result.n_rows)[[0, 2]]
    np.testing.assert_allclose(curve["log_likelihood"], np.mean(per_row) * result.n_rows.sum())
