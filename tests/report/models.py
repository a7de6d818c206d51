"""Models as a fit would leave them, made up in no time."""

import numpy as np

from fedgrem import FederatedGaussianMixture, FederatedMixture, FederatedRegressionMixture

THETA = {FederatedGaussianMixture: "means_", FederatedRegressionMixture: "coef_", FederatedMixture: "params_"}


PAPER = {
    FederatedGaussianMixture: {"covariance_type": "identity"},
    FederatedRegressionMixture: {"noise": "unit"},
    FederatedMixture: {},
}


def made_up(n_sites=5, n_features=3, n_components=2, *, cls=FederatedGaussianMixture, n_rounds=8, **options):
    """Most components at the center, some near it, the last site far away; site 0 wholly at the center.

    In the paper's setting, where no noise is estimated, unless the options say otherwise.
    """
    generator = np.random.default_rng(0)
    model = cls(n_components=n_components, **PAPER[cls] | options)
    center = 4.0 * generator.normal(size=(n_components, n_features))
    moved = generator.normal(size=(n_sites, n_components, n_features)) * (
        generator.random((n_sites, n_components, 1)) < 0.4
    )
    moved[0], moved[-1] = 0.0, 25.0
    model.site_names_ = np.array([f"site-{k}" for k in range(n_sites)])
    setattr(model, THETA[cls], center + moved)
    model.center_, model.n_features_in_ = center, n_features
    model.weights_ = generator.dirichlet(np.ones(n_components), size=n_sites)
    model.center_weights_ = np.full(n_components, 1.0 / n_components)
    model.site_distance_ = np.linalg.norm(moved, axis=-1)
    model.at_center_ = model.site_distance_ == 0.0
    model.n_rows_ = np.full(n_sites, 100.0)
    model.rows_held_down_, model.notes_ = np.zeros(n_sites), np.array([], dtype=str)
    model.has_component_ = np.ones((n_sites, n_components), dtype=bool)
    model.n_rounds_, model.converged_ = n_rounds, True
    model.n_components_ = n_components
    model.between_site_variance_ = np.full(n_components, np.nan)
    model.site_threshold_ = 4.0 / np.sqrt(100.0 * n_components * model.weights_)
    model.vanished_ = np.zeros((n_sites, n_components), dtype=bool)
    model.penalty_ = model.noise_penalty_ = model._given_penalty()
    model.penalty_path_, model.selection_ = {}, {}
    model.site_gain_ = model.site_gain_se_ = np.full(n_sites, np.nan)
    model.local_only_ = np.zeros(n_sites, dtype=bool)
    model.weights_se_ = model.center_se_ = None
    _of_family(model, n_sites, n_features, n_components)
    model.unsettled_sites_ = np.array([], dtype=str)
    model.cost_ = {"numbers_per_round": n_sites * n_components * (n_features + 1)}
    words = np.where(model.at_center_.all(axis=1), "at the center", "similar")
    model.site_verdict_ = np.append(words[:-1], "suspect")
    far = np.arange(n_sites) == n_sites - 1
    model.site_evidence_ = {
        "distance": np.where(far, 30.0, 1.0),
        "expected": np.ones(n_sites),
        "limit": np.full(n_sites, 2.0),
        "fit": np.zeros(n_sites),
        "p_distance": np.where(far, 1e-6, 0.5),
        "p_fit": np.full(n_sites, 0.5),
        "p_value": np.where(far, 2e-6, 1.0),
        "judged_from": np.ones(n_sites),
        "degrees": 10.0,
    }
    falling = 10.0 ** -np.arange(float(n_rounds))
    spread = falling[:, None] * np.linspace(0.5, 1.0, n_sites)
    model.history_ = {
        "movement": spread,
        "center_movement": falling,
        "penalty": np.full(n_rounds, 4.0),
        "log_likelihood": -100.0 * (4.0 + spread),
    }
    return model


def _of_family(model, n_sites, n_features, n_components):
    if isinstance(model, FederatedGaussianMixture):
        model.location_, model.scale_ = np.zeros(n_features), np.ones(n_features)
        model.center_covariances_ = np.eye(n_features)[None]
        model.covariances_ = np.repeat(model.center_covariances_[None], n_sites, axis=0)
    if isinstance(model, FederatedRegressionMixture):
        model.location_, model.scale_ = np.zeros(n_features + 1), np.ones(n_features + 1)
        model.intercept_, model.center_intercept_ = np.zeros((n_sites, n_components)), np.zeros(n_components)
        model.noise_, model.center_noise_ = np.ones((n_sites, n_components)), np.ones(n_components)
