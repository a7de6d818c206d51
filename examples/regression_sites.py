"""Two kinds of patients who respond differently to a dose, at six clinics; nobody knows who is who."""

import numpy as np

from fedgrem import FederatedRegressionMixture


def simulate_clinics(seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Doses in milligrams and responses of every clinic; slopes differ a little from clinic to clinic."""
    generator = np.random.default_rng(seed)
    slopes = np.array([4.0, -2.0])
    covariates, responses = {}, {}
    for name in ("Aachen", "Bergen", "Cluj", "Delft", "Espoo", "Faro"):
        dose = generator.uniform(-2.0, 2.0, size=120)
        kind = generator.random(120) < generator.uniform(0.3, 0.7)
        slope = np.where(kind, slopes[0], slopes[1]) + generator.normal(0.0, 0.1)
        covariates[name] = 10.0 * dose[:, None]
        responses[name] = 1.0 + slope * dose + generator.normal(size=120)
    return covariates, responses


def main() -> None:
    """Fit, then print the common lines and each clinic's mix."""
    covariates, responses = simulate_clinics(seed=0)
    model = FederatedRegressionMixture(n_components=2, random_state=0).fit(covariates, responses)

    lines = zip(model.center_intercept_, model.center_[:, 0], model.center_noise_, strict=True)
    for r, (intercept, slope, noise) in enumerate(lines):
        print(f"kind {r}: response = {intercept:.1f} {slope:+.2f} * dose, give or take {noise:.1f}")
    for name, weights in zip(model.site_names_, model.weights_, strict=True):
        print(f"{name:7} {weights[0]:.0%} of kind 0")


if __name__ == "__main__":
    main()
