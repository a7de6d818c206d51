"""Ten hospitals, one of them hostile: what each gains by working together, and who is suspect."""

import numpy as np

from fedgrem import FederatedGaussianMixture
from fedgrem.data.simulate import simulate
from fedgrem.kernels.scores import parameter_errors


def main() -> None:
    """Fit the paper's simulation together and alone, and compare with the truth."""
    simulation = simulate("gmm", h=0.5, seed=1)
    together = FederatedGaussianMixture(n_components=5, random_state=0).fit(simulation.rows)
    alone = FederatedGaussianMixture(n_components=5, penalty=0, random_state=0).fit(simulation.rows)

    honest = simulation.honest
    for name, model in (("alone", alone), ("together", together)):
        _, error = parameter_errors(
            model.weights_[honest], model.means_[honest], simulation.weights[honest], simulation.theta[honest]
        )
        print(f"{name:9} largest error {error.max():.2f}, average over sites {np.mean(error):.2f}")

    suspect = together.site_names_[together.site_verdict_ == "suspect"]
    print(f"suspect: {', '.join(suspect)}")


if __name__ == "__main__":
    main()
