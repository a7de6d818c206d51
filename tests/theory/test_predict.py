"""Predictions against what is known in closed form."""

import numpy as np
import pytest

from fedgrem.errors import InputError
from fedgrem.theory import Design, predict
from fedgrem.theory.budget import budget, draws_of, quantities
from fedgrem.theory.design import draw, draw_centers
from fedgrem.theory.predict import errors, sites_of

FAR = Design(n_sites=6, n_rows=200, n_features=3, n_components=2, separation=12.0, h=0.0)


def test_the_closest_two_centers_are_the_separation_apart():
    centers = draw_centers(4, 3, 2.5, np.random.default_rng(0))
    apart = np.linalg.norm(centers[:, None] - centers, axis=-1)
    assert apart[np.triu_indices(4, 1)].min() == pytest.approx(2.5)


def test_far_components_have_the_information_of_known_labels_and_overlapping_ones_less():
    far, near = (draw("gmm", 3, 2, separation, 0.0, 0) for separation in (12.0, 2.0))
    for k, w in enumerate(far.weights):
        np.testing.assert_allclose(far.information[k], np.diag(np.repeat(w, 3)), atol=1e-3)
    lost = np.repeat(near.weights, 3, axis=1) - np.diagonal(near.information, axis1=1, axis2=2)
    assert lost.min() > 0.01
    assert np.all(near.known.trace(axis1=1, axis2=2) > near.information.trace(axis1=1, axis2=2))


def test_alone_far_components_have_the_error_of_a_mean():
    found = np.concatenate([errors(sites_of(FAR, s), s, alone_only=True).alone.ravel() for s in range(40)])
    held = np.concatenate([200 * sites_of(FAR, s).weights.ravel() for s in range(40)])
    assert np.mean(found**2 * held) / 3 == pytest.approx(1.0, abs=0.15)


def test_sites_that_are_alike_have_the_error_of_their_pooled_rows():
    sites = [sites_of(FAR, s) for s in range(30)]
    found = [errors(one, s) for s, one in enumerate(sites)]
    expected = [3 / (200 * one.weights.sum(axis=0)) for one in sites]
    ratio = np.mean([np.square(e.together).mean() for e in found]) / np.mean(expected)
    assert 0.9 < ratio < 1.35  # a few draws take chance for a difference


def test_the_error_falls_with_rows_and_sites_and_rises_with_differences():
    base = Design(n_sites=8, n_rows=100, n_features=4, n_components=3, separation=5.0, h=0.6)
    error = predict(base).together
    assert predict(base.but(n_rows=800)).together < 0.6 * error
    assert predict(base.but(h=0.0)).together < 0.8 * error < 0.8 * predict(base.but(h=1.5)).together


def test_sites_that_differ_much_are_fitted_as_if_alone():
    found = predict(FAR.but(h=3.0))
    assert found.ratio == pytest.approx(1.0, abs=0.03)
    assert not found.pays
    assert predict(FAR).pays


def test_the_terms_add_up_and_say_what_they_are_of():
    design = Design(n_sites=8, n_rows=100, n_features=4, n_components=3, separation=5.0, h=0.6, n_outliers=1)
    draws, seeds = draws_of(design)
    found = budget(draws, seeds)
    assert found.total == pytest.approx(predict(design).together)
    assert min(found[:5]) >= 0.0
    assert found.heterogeneity > 0.2 * found.total
    alike = budget(*draws_of(design.but(h=0.0, n_outliers=0)))
    assert alike.heterogeneity == alike.outliers == 0.0
    known = quantities(draws, found)
    assert known.bad == 1 / 8
    assert known.contraction < 0.5
    assert known.pooled_error < known.local_error


def test_predictions_repeat():
    assert predict(FAR) == predict(FAR)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n_sites": 0}, "the number of sites must be at least 1, got 0"),
        ({"n_rows": 6}, "6 rows a site are fewer than two for every one of 5 components"),
        ({"separation": -1.0}, "the separation must be a positive number, got -1"),
        ({"h": -0.5}, "the similarity must be a number of at least 0, got -0.5"),
        ({"n_outliers": 5}, "5 of 10 sites are bad"),
        ({"n_features": 500}, "2500 parameters, expected at most 600"),
    ],
)
def test_a_design_that_cannot_be_is_refused(changed, words):
    with pytest.raises(InputError, match=words):
        Design(**changed)
