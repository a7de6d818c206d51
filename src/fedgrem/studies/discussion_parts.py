"""What the paper's discussion proposes, part by part: what varies, what is compared, and what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedgrem.algorithms.center_rules import Huber
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.attacks.rows import PartOfRows, attack_rows
from fedgrem.data.simulate import Simulation, simulate
from fedgrem.engines.decentralized import Decentralized
from fedgrem.engines.inprocess import InProcess
from fedgrem.estimators.gaussian import FederatedGaussianMixture
from fedgrem.estimators.regression import FederatedRegressionMixture
from fedgrem.families.covariance import Identity
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.kernels.matching import best_assignment
from fedgrem.studies import alignment, networks, sparse
from fedgrem.studies.base import PENALTY
from fedgrem.studies.processes import quiet
from fedgrem.studies.starts import federation_of
from fedgrem.theory.design import Design, draw_centers
from fedgrem.theory.predict import predict
from fedgrem.types import Array, FitResult

Means: TypeAlias = Mapping[str, Array]
"""Line -> mean over seeds of every value along the axis."""


class Part(NamedTuple):
    """One item of the discussion."""

    title: str
    axis: str
    """What varies."""
    measure: str
    values: tuple[float, ...]
    quick: tuple[float, ...]
    """Fewer of them."""
    lines: Mapping[str, str]
    """What is compared, and its words; ours first."""
    play: Callable[[str, float, int], float]
    """The measure of a line at a value with a seed."""
    claim: str
    check: Callable[[Means], tuple[bool, str]]
    """Whether it holds, and what was found."""
    log: bool = False
    """Whether the axis has a logarithmic scale."""
    log_measure: bool = False
    """Whether the measure has."""


def largest_errors(drawn: Simulation, algorithm: Any, seed: int, **options: Any) -> tuple[float, float]:
    """Of weights and of component parameters, over honest sites and components, of a fit with unit covariances."""
    model = FederatedGaussianMixture(
        drawn.theta.shape[1],
        covariance_type="identity",
        algorithm=algorithm,
        standard_errors=False,
        random_state=seed,
        **options,
    )
    with quiet():
        model.fit(drawn.rows)
    weight, theta = drawn.errors(model.weights_, model.means_)
    return float(weight[drawn.honest].max()), float(theta[drawn.honest].max())


def _ratio(means: Means, ours: str, other: str) -> Array:
    return np.asarray(means[ours] / means[other])


def steady(limit: float, than: str) -> Callable[[Means], tuple[bool, str]]:
    """A check that the error of ours is nowhere more than so many times its first."""

    def check(means: Means) -> tuple[bool, str]:
        most = float((means["ours"] / means["ours"][0]).max())
        return most <= limit, f"at most {most:.2f} times the error with {than}."

    return check


def _weights_hold(means: Means) -> tuple[bool, str]:
    ratio = _ratio(means, "ours", "own")
    return bool((ratio < 1.0).all()), f"{ratio.min():.2f} to {ratio.max():.2f} times the error of own weights."


def _without_server_holds(means: Means) -> tuple[bool, str]:
    most = max(float(_ratio(means, line, "server").max()) for line in ("ring", "erdos-renyi"))
    return most <= 1.2, f"at most {most:.2f} times the server's error."


# -- mini-batches and sampled sites


def _sampled(line: str, share: float, seed: int) -> float:
    algorithm = "local-em" if line == "alone" else FedGrEM(batch=share, sites=share)
    return largest_errors(simulate("gmm", h=0.5, seed=seed), algorithm, seed)[1]


# -- pooled weights


@lru_cache(maxsize=2)
def _same_weights(n_rows: int, seed: int) -> Simulation:
    """Sites whose components have the same weights everywhere."""
    weights = np.array([0.10, 0.15, 0.20, 0.25, 0.30])
    drawn = simulate("gmm", h=0.5, n_rows=20 * n_rows, n_outliers=0, seed=seed)
    generator, rows = np.random.default_rng([seed, n_rows]), {}
    for name, labels in drawn.labels.items():
        counts = generator.multinomial(n_rows, weights)
        rows[name] = np.concatenate([drawn.rows[name][labels == r][:count] for r, count in enumerate(counts)])
    return drawn._replace(rows=rows, weights=np.tile(weights, (len(rows), 1)))


def _weights(line: str, n_rows: float, seed: int) -> float:
    return largest_errors(_same_weights(int(n_rows), seed), FedGrEM(pool_weights=line == "ours"), seed)[0]


# -- without a server


def spec_of(seed: int = 0, **options: Any) -> FitSpec:
    """The paper's Gaussians, by Huber's center."""
    algorithm = FedGrEM(center=Huber(), memory=0, pool_weights=False)
    values: dict[str, Any] = {"fallback": False, "look": False, "standard_errors": False, "seed": seed}
    return FitSpec(Gaussian(Identity()), algorithm, 5, PENALTY, **(values | options))


def largest_error(result: FitResult, drawn: Simulation, seen: Array) -> float:
    """Of the component parameters of some sites, components matched by the center."""
    middle = np.median(drawn.theta[drawn.honest], axis=0)
    order = best_assignment(result.center, middle[None])
    places = np.flatnonzero(seen)
    return float(np.linalg.norm(result.theta[places][:, order] - drawn.theta[places], axis=-1).max())


@lru_cache(maxsize=2)
def _sites_without_server(h: float, seed: int) -> tuple[Simulation, Any]:
    drawn = simulate("gmm", h=h, seed=seed)
    return drawn, federation_of(drawn)


def _without_server(line: str, h: float, seed: int) -> float:
    drawn, sites = _sites_without_server(h, seed)
    spec = spec_of(seed)
    found = run(spec, InProcess(sites, spec)) if line == "server" else Decentralized(line).fit(spec, sites)
    return largest_error(found, drawn, drawn.honest)


# -- contaminated rows


def _contaminated(line: str, share: float, seed: int) -> float:
    drawn = simulate("gmm", h=0.5, n_outliers=0, seed=seed)
    if share > 0:
        rows, _ = attack_rows(drawn.rows, PartOfRows("far", share), list(drawn.rows), seed=seed)
        drawn = drawn._replace(rows=rows)
    return largest_errors(drawn, "fedgrem", seed, robust_rows=line == "ours")[1]


# -- few informative columns


def _sparse(line: str, p: float, seed: int) -> float:
    return sparse.play(line, sparse.draw(int(p), seed=seed), seed=seed)["error"]


def _sparse_holds(means: Means) -> tuple[bool, str]:
    oracle, alone = _ratio(means, "sparse", "oracle").max(), _ratio(means, "sparse", "alone").max()
    found = (
        f"at most {oracle:.2f} times that of sites who know the columns, {alone:.2f} times that of sites who do not."
    )
    return bool(oracle <= 1.3 and alone <= 0.5), found


# -- networks


@lru_cache(maxsize=2)
def _networks(scale: float, seed: int) -> networks.Networks:
    return networks.draw(scale=scale, sizes=networks.SIZES[::2], seed=seed)


def _network(line: str, scale: float, seed: int) -> float:
    return float(networks.play(line, _networks(scale, seed), seed=seed)["misclustering"])


def _networks_hold(means: Means) -> tuple[bool, str]:
    ratio = means["together"].mean() / means["embedded"].mean()
    other = means["together"].mean() / means["alone"].mean()
    found = f"{ratio:.2f} of it, over all densities; {other:.2f} of that of a block model of each network alone."
    return bool(ratio <= 0.5), found


# -- a plan before there are rows

DESIGN = Design(n_sites=10, n_rows=150, n_features=10, n_components=4, separation=4.0)


def _planned(line: str, h: float, seed: int) -> float:
    design = DESIGN.but(h=h)
    if line.endswith("predicted"):
        expected = predict(design)
        return expected.together if line == "predicted" else expected.alone
    return simulated(design, seed)[line != "simulated"]


@lru_cache(maxsize=2)
def simulated(design: Design, seed: int) -> tuple[float, float]:
    """Largest error of a default fit to simulated rows, and of every site alone."""
    generator = np.random.default_rng([2025, seed])
    centers = draw_centers(design.n_components, design.n_features, design.separation, generator)
    rows = simulate(
        design.model, h=design.h, n_sites=design.n_sites, n_rows=design.n_rows, n_outliers=design.n_outliers,
        centers=centers, seed=seed,
    )  # fmt: skip
    found = []
    kind: Any = FederatedGaussianMixture if rows.targets is None else FederatedRegressionMixture
    for penalty in ("auto", 0.0):
        model = kind(design.n_components, penalty=penalty, random_state=seed, standard_errors=False)
        with quiet():
            model.fit(rows.rows, rows.targets)
        theta = model.means_ if rows.targets is None else model.coef_
        found.append(float(rows.errors(model.weights_, theta)[1][rows.honest].max()))
    return found[0], found[1]


def _plan_holds(means: Means) -> tuple[bool, str]:
    off = np.abs(_ratio(means, "predicted", "simulated") - 1.0)
    return bool((off <= 0.25).all()), f"off by at most {off.max():.0%}."


# -- labels


def _labels_hold(means: Means) -> tuple[bool, str]:
    at = {name: f"{100 * float(values.mean()):.0f}%" for name, values in means.items()}
    better = means["ours"].mean() >= max(means[name].mean() for name in means) - 0.02
    found = (
        f"over all separations ours is right in {at['ours']}, recurring labels in {at['recurring']}, a random order in "
    )
    return bool(better), f"{found}{at['random order']}, bad sites first in {at['order given']}."


PARTS: dict[str, Part] = {
    "sampling": Part(
        "Mini-batches and sampled sites", "share of rows and of sites in a round", "largest error of θ",
        (1.0, 0.5, 0.2, 0.1), (1.0, 0.2), {"ours": "FedGrEM", "alone": "each site alone"}, _sampled,
        "Rounds with some rows of some sites end where rounds with all of them do.", steady(1.1, "all of them"),
        True,
    ),
    "weights": Part(
        "Pooled weights", "rows of a site, n", "largest error of a weight", (40.0, 75.0, 150.0, 300.0, 600.0),
        (75.0, 300.0), {"ours": "pooled", "own": "own weights"}, _weights,
        "Where sites have the same weights, pooling lowers their error.", _weights_hold, True,
    ),
    "server": Part(
        "Without a server", "distance of sites from the center, h", "largest error of θ",
        (0.0, 0.5, 1.0, 1.5), (0.0, 1.0),
        {"ring": "neighbours in a ring", "erdos-renyi": "in a random graph", "server": "a server"}, _without_server,
        "Neighbours alone find about what a server finds.", _without_server_holds,
    ),
    "rows": Part(
        "Contaminated rows", "share of every site's rows that are far away", "largest error of θ",
        (0.0, 0.05, 0.1, 0.15, 0.2), (0.0, 0.1), {"ours": "robust rows", "plain": "plain rows"}, _contaminated,
        "Up to a fifth of every site's rows may be contaminated.", steady(1.2, "clean rows"),
    ),
    "sparse": Part(
        "Many columns: a sparse center", "columns, p, of which 10 are informative", "largest error of θ",
        (10.0, 50.0, 200.0, 800.0), (10.0, 200.0),
        {"sparse": "sparse center", "oracle": "alone, columns known", "alone": "each site alone"}, _sparse,
        "The error with many columns is that of sites who know the informative ones.", _sparse_holds, True, True,
    ),
    "networks": Part(
        "Networks: communities found together", "density, relative to weak communities", "nodes in the wrong community",
        (0.7, 1.0, 1.3, 1.6), (1.0, 1.4),
        {"together": "block models together", "alone": "block model alone", "embedded": "embedding, Gaussians alone"},
        _network, "Together, networks mis-cluster at most half of what each does by its embedding alone.",
        _networks_hold,
    ),
    "plan": Part(
        "The theory as a plan", "distance of sites from the center, h", "largest error of θ",
        (0.0, 0.5, 1.0, 1.5, 2.0), (0.0, 1.0),
        {"predicted": "predicted", "simulated": "fits", "alone predicted": "alone, predicted", "alone": "alone, fits"},
        _planned, "The error is predicted within a quarter before there are rows.", _plan_holds,
    ),
    "labels": Part(
        "Labels of starts: 3 of 10 sites bad", "separation, relative to the stepwise theorem's condition",
        "share of draws with all good sites right", (0.05, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0), (0.1, 0.15, 0.2, 0.5),
        {
            "ours": "assignment, ours", "recurring": "stepwise, recurring labels of 20 orders",
            "random order": "stepwise, one random order", "order given": "stepwise, bad sites first",
        },
        alignment.share_right, "Labels of the package are right at least as often as those that recur.", _labels_hold,
        True,
    ),
}  # fmt: skip
"""Name -> part, in the order of the page."""
