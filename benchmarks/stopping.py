"""What stopping by standard errors saves and costs: `python benchmarks/stopping.py --seeds 20`.

For every seed the same fit, stopped by the default rule, by `tol` alone, and settled to 1e-9: rounds, and how far the
first is from the last in standard errors, over the honest sites.
"""

import argparse
import warnings

import numpy as np

from fedgrem import FederatedGaussianMixture, FederatedRegressionMixture
from fedgrem.data.simulate import simulate


def one_seed(model: str, h: float, seed: int) -> tuple[int, int, int, float]:
    """Rounds by the default rule, by the relative one alone, and to the end; and the largest distance from the end."""
    truth = simulate(model, h=h, seed=seed)
    fits = []
    for options in ({}, {"tol_errors": 0.0}, {"tol": 1e-9, "tol_errors": 0.0}):
        options |= {"n_components": 5, "penalty": 2.0, "max_rounds": 3000, "random_state": seed}
        if model == "gmm":
            fits.append(FederatedGaussianMixture(covariance="identity", **options).fit(truth.rows))
        else:
            fits.append(FederatedRegressionMixture(**options).fit(truth.rows, truth.targets))
    default, relative, settled = fits
    theta = [getattr(fit, f"{fit._theta_name}_")[truth.honest] for fit in (default, settled)]
    error = getattr(settled, f"{settled._theta_name}_se_")[truth.honest]
    away = float(np.nanmax(np.abs(theta[0] - theta[1]) / error))
    return default.n_rounds_, relative.n_rounds_, settled.n_rounds_, away


def main() -> None:
    """Print a line for every model and similarity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=("gmm", "mor"), default=["gmm", "mor"])
    parser.add_argument("--similarity", nargs="+", type=float, default=[0.0, 1.0], metavar="h")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for model in arguments.model:
        for h in arguments.similarity:
            told = np.array([one_seed(model, h, seed) for seed in range(arguments.seeds)])
            rounds, away = np.median(told[:, :3], axis=0), told[:, 3]
            print(
                f"{model} h={h:g}: rounds {rounds[0]:g} by default, {rounds[1]:g} by tol alone, {rounds[2]:g} to 1e-9; "
                f"standard errors from the end: median {np.median(away):.2g}, largest {away.max():.2g}",
                flush=True,
            )


if __name__ == "__main__":
    main()
