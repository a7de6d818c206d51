"""What stopping by standard errors saves and costs: `python benchmarks/stopping.py --seeds 20`.

For every seed the same fit, stopped by the default rule, and settled to 1e-9 of its parameters or 3e-6 of their
standard errors: rounds, and how far the first is from the second in standard errors, over the honest sites.
"""

import warnings

import numpy as np

from common import asked, some_of
from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.data.simulate import simulate


def one_seed(model: str, h: float, seed: int) -> tuple[int, int, float]:
    """Rounds by the default rule and to the end; and the largest distance from the end."""
    truth = simulate(model, h=h, seed=seed)
    paper = {"penalty": 2.0, "algorithm": FedGrEM("huber", penalty_rows="site")}
    fits = []
    for options in ({}, {"tol": 1e-9}):
        options |= {"n_components": 5, "max_rounds": 3000, "random_state": seed} | paper
        if model == "gmm":
            fits.append(FederatedGaussianMixture(covariance_type="identity", **options).fit(truth.rows))
        else:
            fits.append(FederatedRegressionMixture(noise="unit", **options).fit(truth.rows, truth.targets))
    default, settled = fits
    theta = [getattr(fit, f"{fit._theta_name}_")[truth.honest] for fit in fits]
    error = getattr(settled, f"{settled._theta_name}_se_")[truth.honest]
    away = float(np.nanmax(np.abs(theta[0] - theta[1]) / error))
    return default.n_rounds_, settled.n_rounds_, away


def main() -> None:
    """Print a line for every model and similarity."""
    arguments = asked(__doc__, model=some_of(("gmm", "mor")), similarity=[0.0, 1.0], seeds=20)
    warnings.simplefilter("ignore")
    for model in arguments.model:
        for h in arguments.similarity:
            told = np.array([one_seed(model, h, seed) for seed in range(arguments.seeds)])
            rounds, away = np.median(told[:, :2], axis=0), told[:, 2]
            print(
                f"{model} h={h:g}: rounds {rounds[0]:g} by default, {rounds[1]:g} to 1e-9; "
                f"standard errors from the end: median {np.median(away):.2g}, largest {away.max():.2g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
