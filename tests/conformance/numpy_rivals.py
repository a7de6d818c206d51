"""The rivals in plain NumPy, one site, one component and one row at a time: read beside their docstrings.

Nothing here is shared with the package; E-step and gradient step are those of the transcription of FedGrEM.
"""

import numpy as np

from tests.conformance.numpy_fedgrem import GAUSSIAN, REGRESSION
from tests.conformance.numpy_fedgrem import local_step as gradient_step

RIDGE = 1e-6
EMPTY = 1e-12


def responsibilities(family, xs, ys, weights, theta):
    """(R, n)"""
    log_density = family[0]
    mass = np.zeros((len(weights), len(xs)))
    for i in range(len(xs)):
        joint = np.array([np.log(w) + log_density(xs[i], ys[i], t) for w, t in zip(weights, theta, strict=True)])
        likelihood = np.exp(joint - joint.max())
        mass[:, i] = likelihood / likelihood.sum()
    return mass


def weighted_mean(xs, ys, mass):
    return sum(m * x for m, x in zip(mass, xs, strict=True)) / mass.sum()


def weighted_regression(xs, ys, mass):
    p = xs.shape[1]
    gram = sum(m * np.outer(x, x) for m, x in zip(mass, xs, strict=True))
    cross = sum(m * x * y for m, x, y in zip(mass, xs, ys, strict=True))
    lift = RIDGE * np.trace(gram) / p + EMPTY * np.max(xs**2)
    return np.linalg.solve(gram + lift * np.eye(p), cross)


EXACT = {GAUSSIAN: weighted_mean, REGRESSION: weighted_regression}


def em_step(family, xs, ys, weights, theta):
    """Weights and theta of one site after one EM step."""
    mass = responsibilities(family, xs, ys, weights, theta)
    new_theta = np.array([EXACT[family](xs, ys, mass[r]) for r in range(len(weights))])
    return np.array([mass[r].sum() / len(xs) for r in range(len(weights))]), new_theta


def local_em(family, sites, weights, theta, rounds):
    weights, theta = weights.copy(), theta.copy()
    for _ in range(rounds):
        for k, (xs, ys) in enumerate(sites):
            weights[k], theta[k] = em_step(family, xs, ys, weights[k], theta[k])
    return weights, theta


def local_grem(family, sites, weights, theta, rounds, step_size=0.95):
    weights, theta = weights.copy(), theta.copy()
    for _ in range(rounds):
        for k, (xs, ys) in enumerate(sites):
            weights[k], theta[k], _, _ = gradient_step(family, xs, ys, weights[k], theta[k], step_size=step_size)
    return weights, theta


def fedem(family, sites, weights, theta, rounds, averaging="rows"):
    weights, theta = weights.copy(), theta.copy()
    counts = [len(xs) if averaging == "rows" else 1 for xs, _ in sites]
    for _ in range(rounds):
        moved = np.zeros_like(theta)
        for k, (xs, ys) in enumerate(sites):
            weights[k], moved[k] = em_step(family, xs, ys, weights[k], theta[k])
        for r in range(theta.shape[1]):
            common = sum(counts[k] * moved[k, r] for k in range(len(sites))) / sum(counts)
            for k in range(len(sites)):
                theta[k, r] = common
    return weights, theta


def tgmm(family, sites, weights, theta, rounds, transfer=0.4):
    first, weights, theta = theta.copy(), weights.copy(), theta.copy()
    n_sites = len(sites)
    for k, (xs, ys) in enumerate(sites):
        for _ in range(rounds):
            weights[k], own = em_step(family, xs, ys, weights[k], theta[k])
            for r in range(theta.shape[1]):
                pulled = own[r] + transfer * sum(first[other, r] for other in range(n_sites) if other != k)
                theta[k, r] = pulled / (1 + transfer * (n_sites - 1))
    return weights, theta


def shared_em(family, sites, weights, theta, rounds):
    """EM with common components and each site's own weights, on all rows at once."""
    weights, theta = weights.copy(), theta.copy()
    all_xs, all_ys = (np.concatenate(part) for part in zip(*sites, strict=True))
    for _ in range(rounds):
        mass = [responsibilities(family, xs, ys, weights[k], theta[k]) for k, (xs, ys) in enumerate(sites)]
        weights = np.array([own.mean(axis=1) for own in mass])
        together = np.concatenate(mass, axis=1)
        for r in range(theta.shape[1]):
            theta[:, r] = EXACT[family](all_xs, all_ys, together[r])
    return weights, theta
