"""Fits of a design that is planned: what a plan's predictions are compared with."""

import warnings
from typing import Any

import numpy as np

from fedgrem.data.simulate import simulate
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.estimators.regression import FederatedRegressionMixture
from fedgrem.kernels.scores import parameter_errors
from fedgrem.theory.design import Design, draw_centers


def simulated(design: Design, seed: int) -> tuple[float, float]:
    """Largest error of a default fit to simulated rows, and of every site alone."""
    generator = np.random.default_rng([2025, seed])
    centers = draw_centers(design.n_components, design.n_features, design.separation, generator)
    rows = simulate(
        design.model, h=design.h, n_sites=design.n_sites, n_rows=design.n_rows, n_outliers=design.n_outliers,
        centers=centers, seed=seed,
    )  # fmt: skip
    good, found = rows.honest, []
    kind: Any = FederatedGaussianMixture if rows.targets is None else FederatedRegressionMixture
    for penalty in ("auto", 0.0):
        model = kind(design.n_components, penalty=penalty, random_state=seed, standard_errors=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows.rows, rows.targets)
        theta = model.means_ if rows.targets is None else model.coef_
        _, error = parameter_errors(model.weights_[good], theta[good], rows.weights[good], rows.theta[good])
        found.append(float(error.max()))
    return found[0], found[1]
