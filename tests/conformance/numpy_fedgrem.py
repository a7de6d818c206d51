"""Algorithm 1 in plain NumPy, one site, one component and one row at a time: read beside the paper.

Nothing here is shared with the package but the documented constants. The paper divides a step by the initial weight as
it is; it weighs sites at the center by their rows, here at most ten times the median's, as the package does.
"""

import numpy as np

LEAST_SHARE = 0.2
WEIGHT_CAP = 10.0
LEAST_STEP_SCALE = 0.02


def log(weight):
    return np.log(weight) if weight > 0 else -np.inf


def gaussian_log_density(x, y, theta):
    return -0.5 * np.sum((x - theta) ** 2) - 0.5 * len(x) * np.log(2 * np.pi)


def gaussian_gradient(x, y, theta):
    return x - theta


def gaussian_curvature(xs, mass):
    return mass.sum()


def regression_log_density(x, y, theta):
    return -0.5 * (y - x @ theta) ** 2 - 0.5 * np.log(2 * np.pi)


def regression_gradient(x, y, theta):
    return (y - x @ theta) * x


def regression_curvature(xs, mass):
    """The documented bound on the largest eigenvalue: the 16th root of the sum of 16th powers."""
    moments = sum(m * np.outer(x, x) for m, x in zip(mass, xs, strict=True))
    values = np.linalg.eigvalsh(moments)
    return values[-1] * np.sum((values / values[-1]) ** 16) ** (1 / 16)


GAUSSIAN = gaussian_log_density, gaussian_gradient, gaussian_curvature
REGRESSION = regression_log_density, regression_gradient, regression_curvature


def local_step(family, xs, ys, weights, theta, *, step_size, first_weights=None):
    """E-step and gradient step of one site: new weights, new theta, step scales, log-likelihood."""
    log_density, row_gradient, curvature = family
    n, n_components = len(xs), len(weights)
    mass, log_likelihood = np.zeros((n_components, n)), 0.0
    for i in range(n):
        joint = np.array([log(weights[r]) + log_density(xs[i], ys[i], theta[r]) for r in range(n_components)])
        top = joint.max()
        row = top + np.log(np.sum(np.exp(joint - top)))
        mass[:, i] = np.exp(joint - row)
        log_likelihood += row
    new_theta, scales = np.zeros_like(theta), np.ones(n_components)
    for r in range(n_components):
        gradient = sum(mass[r, i] * row_gradient(xs[i], ys[i], theta[r]) for i in range(n)) / n
        if first_weights is None:
            w = max(mass[r].sum() / n, LEAST_SHARE / n_components)
            scales[r] = min(1.0, n * w / curvature(xs, mass[r]))
            new_theta[r] = theta[r] + step_size * scales[r] / w * gradient
        else:
            new_theta[r] = theta[r] + step_size / first_weights[r] * gradient
    return mass.sum(axis=1) / n, new_theta, scales, log_likelihood


def central_problem(theta, weight, threshold, sweeps):
    """Steps (i) to (iii) of one component: (K, q), (K,), (K,); ``sweeps`` None goes on until nothing moves."""
    n_sites = len(theta)
    delta, last, sweep = np.zeros_like(theta), None, 0
    while sweep != sweeps:
        center = sum(weight[k] * (theta[k] - delta[k]) for k in range(n_sites)) / weight.sum()
        for k in range(n_sites):
            deviation = theta[k] - center
            distance = np.linalg.norm(deviation)
            delta[k] = (1 - threshold[k] / distance) * deviation if distance > threshold[k] else 0.0
        sweep += 1
        if sweeps is None and last is not None and np.abs(center - last).max() < 1e-14:
            break
        last = center
        assert sweep < 100_000
    return center + delta, center


def fedgrem(
    family,
    sites,
    weights,
    theta,
    *,
    rounds,
    penalty=2.0,
    decay=0.1,
    step_size=0.95,
    step_weights="current",
    center_solver="exact",
    center_sweeps=2,
):
    """Weights (K, R), theta (K, R, q), center (R, q), last lambda, and the log-likelihoods before each round."""
    n_sites, n_components, q = theta.shape
    sizes = np.array([len(xs) for xs, _ in sites], dtype=float)
    capped = np.array([min(n, WEIGHT_CAP * np.median(sizes)) for n in sizes])
    first, weights, theta = weights.copy(), weights.copy(), theta.copy()
    center, history, lam = np.zeros((n_components, q)), [], 1.0
    for _ in range(rounds):
        moved, scales = np.zeros_like(theta), np.ones((n_sites, n_components))
        log_likelihood = np.zeros(n_sites)
        for k, (xs, ys) in enumerate(sites):
            given = first[k] if step_weights == "initial" else None
            weights[k], moved[k], scales[k], log_likelihood[k] = local_step(
                family, xs, ys, weights[k], theta[k], step_size=step_size, first_weights=given
            )
        lam = decay * lam + penalty * np.sqrt(q + np.log(n_sites))
        scales = np.clip(scales, LEAST_STEP_SCALE, 1.0)
        for r in range(n_components):
            theta[:, r], center[r] = central_problem(
                moved[:, r],
                capped / scales[:, r],
                lam / np.sqrt(sizes) * scales[:, r],
                center_sweeps if center_solver == "alternating" else None,
            )
        history.append(log_likelihood)
    return weights, theta, center, lam, np.array(history)
