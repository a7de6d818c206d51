"""The fit on NVFlare's simulator, every site in a process of its own."""

import numpy as np
import pytest

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.errors import InputError, MissingExtraError
from tests.engines.remote.studies import NAMES, rows_of


def test_a_fit_in_the_simulator_is_the_fit_in_process(flare):
    options = {
        "n_components": 2,
        "covariance_type": "identity",
        "n_init": 2,
        "max_rounds": 5,
        "tol": 0.0,
        "random_state": 1,
    }
    rows = {name: rows_of(name)[0] for name in NAMES}
    weight = {name: np.linspace(0.5, 1.5, len(x)) for name, x in rows.items()}
    told, inside = [], []
    expected = FederatedGaussianMixture(**options).fit(rows, sample_weight=weight, on_progress=inside.append)
    actual = FederatedGaussianMixture(**options).fit(
        rows, sample_weight=weight, engine="flare-simulator", on_progress=told.append
    )
    for name in ("weights_", "means_", "center_", "n_rows_", "site_distance_"):
        np.testing.assert_allclose(getattr(actual, name), getattr(expected, name), rtol=1e-10, atol=1e-10)
    stages = [progress.stage for progress in told]
    assert stages == [progress.stage for progress in inside]
    assert list(dict.fromkeys(stages)) == [
        "census",
        "starts",
        "exchange",
        "penalties",
        "rounds",
        "look",
        "standard errors",
    ]
    assert stages.count("rounds") == 5
    assert actual.penalty_ == expected.penalty_
    assert actual.site_verdict_.tolist() == expected.site_verdict_.tolist()
    np.testing.assert_allclose(actual.means_se_, expected.means_se_, rtol=1e-8)
    np.testing.assert_array_equal(
        actual.predict(rows["east"], sites="east"), expected.predict(rows["east"], sites="east")
    )


@pytest.mark.slow
def test_secure_sums_in_the_simulator_find_the_center_of_the_fit_in_process(flare):
    options = {"penalty": 2.0, "max_rounds": 3, "tol": 0.0, "random_state": 1, "secure_sums": True}
    rows = {name: rows_of(name)[0] for name in NAMES}
    actual = FederatedGaussianMixture(2, **options).fit(rows, engine="flare-simulator")
    expected = FederatedGaussianMixture(2, **options).fit(rows)
    np.testing.assert_allclose(actual.center_, expected.center_, rtol=0, atol=1e-9)
    assert np.isnan(actual.means_).all(), "what sites found stayed there"


@pytest.mark.slow
def test_orders_that_sites_fetch_give_the_same_answer(flare):
    from fedgrem.data.federation import Federation
    from fedgrem.engines.flare.simulator import fit_in_simulator
    from fedgrem.estimators.network import spec_for

    options = {"n_components": 2, "noise": "shared", "n_init": 1, "max_rounds": 2, "tol": 0.0, "random_state": 1}
    rows = {name: rows_of(name) for name in NAMES}
    expected = FederatedRegressionMixture(**options).fit(
        {n: x for n, (x, _) in rows.items()}, {n: y for n, (_, y) in rows.items()}
    )
    federation = Federation.from_sites(NAMES, [x for x, _ in rows.values()], [y for _, y in rows.values()])
    finished = fit_in_simulator(spec_for(FederatedRegressionMixture(**options)), federation, transport="poll")
    np.testing.assert_allclose(finished.result.weights, expected.weights_, rtol=1e-10, atol=1e-10)


def test_what_is_wrong_with_the_data_is_told_as_in_process(flare):
    rows = {name: np.column_stack([rows_of(name)[0], np.ones(len(rows_of(name)[0]))]) for name in NAMES}
    with pytest.raises(InputError, match="is constant"):
        FederatedGaussianMixture(2).fit(rows, engine="flare-simulator")


def test_an_unknown_engine_is_refused():
    rows = {name: rows_of(name)[0] for name in NAMES}
    with pytest.raises(InputError, match=r"one of 'in-process', 'flare-simulator' or Decentralized\(\); got 'mpi'"):
        FederatedGaussianMixture(2).fit(rows, engine="mpi")


def test_without_nvflare_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("fedgrem.engines.flare.processes.find_spec", lambda name: None)
    rows = {name: rows_of(name)[0] for name in NAMES}
    with pytest.raises(
        MissingExtraError, match=r"needs NVFlare, which is not installed; run: pip install 'fedgrem\[flare\]'"
    ):
        FederatedGaussianMixture(2).fit(rows, engine="flare-simulator")


def test_importing_fedgrem_does_not_import_nvflare():
    import subprocess
    import sys

    code = (
        "import sys, fedgrem, fedgrem.estimators, fedgrem.cli, fedgrem.engines.remote.engine\n"
        "sys.exit('nvflare' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
