"""Saved models come back as they were, without pickle, or say plainly why not."""

import json

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from fedgrem import (
    TGMM,
    FederatedGaussianMixture,
    FederatedMixture,
    FederatedRegressionMixture,
    FedGrEM,
    load_model,
    save_model,
)
from fedgrem.algorithms.center_rules import Huber
from fedgrem.errors import InputError, InputTypeError, ModelFileError

OPTIONS = {"n_init": 1, "max_rounds": 20, "tol": 1.0, "standard_errors": False, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=(30, 2)) + shift for name, shift in (("north", 0.0), ("south", 1.0))}


@pytest.fixture(scope="module")
def model(rows):
    return FederatedGaussianMixture(2, penalty=np.inf, **OPTIONS).fit(rows)


def test_everything_a_fit_found_comes_back(model, rows, tmp_path):
    loaded = load_model(save_model(model, tmp_path / "deep" / "model"))
    assert type(loaded) is FederatedGaussianMixture
    assert repr(loaded.get_params()) == repr(model.get_params())
    for name, value in model.fitted_values().items():
        kept = value if isinstance(value, dict) else {"": value}
        back = getattr(loaded, name) if isinstance(value, dict) else {"": getattr(loaded, name)}
        assert back.keys() == kept.keys()
        for key, part in kept.items():
            np.testing.assert_array_equal(back[key], part, err_msg=f"{name} {key}")
    np.testing.assert_array_equal(loaded.predict(rows)["south"], model.predict(rows)["south"])


def test_column_names_and_labels_that_are_numbers_come_back(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(1).normal(size=(60, 2)), columns=["age", "bmi"]).assign(site=[1, 2] * 30)
    fitted = FederatedGaussianMixture(2, **OPTIONS).fit(frame, sites="site")
    loaded = load_model(save_model(fitted, tmp_path))
    assert loaded.feature_names_in_.tolist() == ["age", "bmi"]
    assert loaded.site_names_.tolist() == [1, 2]


def test_nothing_on_disk_is_a_pickle(model, tmp_path):
    save_model(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arrays.npz", "model.json"]
    with np.load(tmp_path / "arrays.npz", allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)


def test_a_custom_model_needs_its_functions_again(rows, tmp_path):
    def density(row, theta):
        return -jnp.sum(jnp.sqrt(1.0 + (row - theta) ** 2))

    def start(key, sample):
        return sample.mean(axis=0)

    fitted = FederatedMixture(density, start, n_components=2, penalty=2.0, **OPTIONS).fit(rows)
    save_model(fitted, tmp_path)
    loaded = load_model(tmp_path, log_density=density, draw_start=start)
    np.testing.assert_array_equal(loaded.predict(rows)["north"], fitted.predict(rows)["north"])
    with pytest.raises(InputTypeError, match="log_density must be a function"):
        load_model(tmp_path).predict(rows)


def test_a_regression_comes_back(rows, tmp_path):
    targets = {name: values[:, 0] for name, values in rows.items()}
    fitted = FederatedRegressionMixture(2, penalty=2.0, **OPTIONS).fit(rows, targets)
    loaded = load_model(save_model(fitted, tmp_path))
    np.testing.assert_array_equal(loaded.coef_, fitted.coef_)


@pytest.mark.parametrize(
    "algorithm",
    [FedGrEM.paper(), FedGrEM(center="huber", noise_penalty=np.inf), TGMM(transfer=0.2)],
    ids=lambda algorithm: algorithm.traits.title,
)
def test_an_algorithm_with_options_comes_back(algorithm, rows, tmp_path):
    fitted = FederatedGaussianMixture(2, algorithm=algorithm, **OPTIONS | {"tol": 0.0, "max_rounds": 2}).fit(rows)
    loaded = load_model(save_model(fitted, tmp_path))
    if algorithm == FedGrEM(center="huber", noise_penalty=np.inf):
        algorithm = FedGrEM(center=Huber(), noise_penalty=np.inf)
    assert loaded.algorithm == algorithm
    np.testing.assert_array_equal(loaded.predict(rows)["south"], fitted.predict(rows)["south"])


def test_starts_that_were_given_as_lists_come_back(rows, tmp_path):
    start = np.zeros((2, 2, 2)).tolist()
    fitted = FederatedGaussianMixture(2, means_init=start, **OPTIONS | {"tol": 0.0, "max_rounds": 2}).fit(rows)
    np.testing.assert_array_equal(load_model(save_model(fitted, tmp_path)).means_init, start)


def test_an_unfitted_model_is_not_saved(tmp_path):
    with pytest.raises(NotFittedError):
        save_model(FederatedGaussianMixture(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(model, tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(InputError, match=r"model is a file; give a folder"):
        save_model(model, tmp_path / "model")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"holds no complete model: .*model.json is missing"):
        load_model(tmp_path)


def spoil(folder, **changes):
    path = folder / "model.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": 99}, r"has format 99, written by fedgrem .*; this fedgrem .* reads format 2. Fit it again"),
        ({"format": 1, "fedgrem": "0.1.0"}, r"has format 1, written by fedgrem 0.1.0; .* or open it with the release"),
        (
            {"parameters": {"algorithm": {"algorithm": {"name": "fedavg"}}}},
            r"does not fit .*algorithm='fedavg', expected",
        ),
        ({"class": "os.system"}, r"lacks 'os.system'; it is damaged"),
        ({"parameters": None}, r"lacks 'parameters'; it is damaged"),
        ({"parameters": {"colour": 1}}, r"does not fit this fedgrem"),
    ],
)
def test_a_model_of_another_kind_or_damaged_is_refused(model, tmp_path, changes, match):
    save_model(model, tmp_path)
    spoil(tmp_path, **changes)
    with pytest.raises(ModelFileError, match=match):
        load_model(tmp_path)


def test_a_file_cut_short_is_refused(model, tmp_path):
    save_model(model, tmp_path)
    content = (tmp_path / "arrays.npz").read_bytes()
    (tmp_path / "arrays.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_model(tmp_path)
