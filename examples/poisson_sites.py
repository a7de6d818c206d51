"""Components that you write as one log density, here Poisson counts; needs the extra ``fedgrem[own-density]``."""

import jax
import jax.numpy as jnp
import numpy as np

from fedgrem import FederatedMixture

CLINICS = ("cardiology", "orthopedics", "dentist")


def poisson(row: jax.Array, log_rate: jax.Array) -> jax.Array:
    """Log density of counts, up to a term without parameters. On the log scale a rate cannot turn negative."""
    return jnp.sum(row * log_rate - jnp.exp(log_rate))


def poisson_start(key: jax.Array, rows: jax.Array) -> jax.Array:
    """A start for one component: the log of the mean of a few rows."""
    return jnp.log(rows.mean(axis=0) + 0.5)


def main() -> None:
    """Fit, and print the rates behind the counts and the kinds of people at each site."""
    generator = np.random.default_rng(0)
    names = ("north", "south", "east", "west")

    rates = np.array([[1.0, 8.0, 3.0], [7.0, 1.0, 3.0]])
    counts = {name: generator.poisson(rates[generator.integers(2, size=150)]) for name in names}
    model = FederatedMixture(poisson, poisson_start, n_components=2, random_state=0).fit(counts)
    print("visits per month:")
    for r, rate in enumerate(np.exp(model.center_)):
        print(f"  kind {r}: " + ", ".join(f"{what} {value:.1f}" for what, value in zip(CLINICS, rate, strict=True)))
    for name, weights in zip(model.site_names_, model.weights_, strict=True):
        print(f"{name:6} {weights[0]:.0%} of kind 0")


if __name__ == "__main__":
    main()
