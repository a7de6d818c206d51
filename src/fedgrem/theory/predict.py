"""The largest error of a fit, predicted without a fit: its own center rule on what its sites will estimate.

Near the truth a site's log-likelihood is quadratic with its information as curvature: what a site would estimate alone
is normal about its truth, an M-step is linear, and the end of a fit is a fixed point in the space of parameters. That
point is found by the sites' M-steps and the center rule in turn: a few small matrices instead of rows.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtri

from fedgrem.algorithms.center_rules import EmpiricalBayes, Redescending
from fedgrem.algorithms.centered import CenterRule
from fedgrem.kernels.center import CHANCE, row_norm
from fedgrem.kernels.randomness import generator_for
from fedgrem.theory.design import EVENNESS, Design, Draw, draw, scatter
from fedgrem.types import Array

DRAWS = 12
"""Of centers, sites and rows; a prediction is their median."""
ROUNDS, SETTLED = 60, 3e-3
LEAST_HELD = 1.0
"""Rows that a component of a site is taken to hold at least."""
BAD_CENTER, BAD_VARIANCE = 2.0, 3.0
"""Of the rows of the paper's outlier sites, in every column."""
PAYS = 0.98
"""Federating pays where it lowers the largest error to this part or less."""
PENALTIES = (0.5, 1.0, 2.0, 4.0)
"""Of which the best is taken to be chosen, for regressions."""


class Calibration(NamedTuple):
    """What predictions are multiplied by: the median of simulated over predicted errors."""

    together: float
    alone: float


CALIBRATED = {"gmm": Calibration(1.03, 1.06), "mor": Calibration(1.0, 1.0)}
"""Made by ``python benchmarks/plan.py --calibrate --designs 16 --seeds 5`` and the same with ``--model mor``."""


class Sites(NamedTuple):
    """Sites around common centers, as far as errors depend on them."""

    found: Draw
    weights: Array
    """(K, R) of the honest sites."""
    n_rows: Array
    """(K,) of the honest sites."""
    h: Array
    """(R,) how far sites are from the common center."""
    n_bad: int = 0
    colluding: bool = False
    """Whether bad sites send one answer as far off as an honest site may be, or have the paper's outlying rows."""
    weights_known: bool = False
    model: str = "gmm"
    sent: Array | None = None
    """(B, R, q) what the bad sites sent, where that is known."""


class Errors(NamedTuple):
    """Errors of one draw."""

    together: Array
    """(K, R) of theta at every honest site."""
    alone: Array
    """(K, R) by fits of each site alone."""
    center: Array
    """(R,) of the common center."""


class Prediction(NamedTuple):
    """The largest error of theta over sites and components: medians over draws."""

    together: float
    alone: float
    center: float
    ratio: float
    """Together over alone, draw by draw."""

    @property
    def pays(self) -> bool:
        """Whether federating lowers the largest error."""
        return self.ratio <= PAYS


def sites_of(design: Design, seed: int) -> Sites:
    """One draw of the sites of a design."""
    found = draw(design.model, design.n_features, design.n_components, design.separation, design.h, seed)
    n_honest = design.n_sites - design.n_outliers
    weights = generator_for(seed, "", "weights").dirichlet(np.full(design.n_components, EVENNESS), size=n_honest)
    if len(found.weights) >= n_honest:
        weights = found.weights[:n_honest]
    rows, h = np.full(n_honest, design.n_rows), np.full(design.n_components, design.h)
    return Sites(found, weights, rows, h, design.n_outliers, model=design.model)


def errors(sites: Sites, seed: int, *, alone_only: bool = False) -> Errors:
    """The errors of one draw of rows. Every kind of chance has a stream of its own, so that designs compare."""
    found, (n_honest, n_components), size = sites.found, sites.weights.shape, sites.found.center.shape[1]
    shape = (n_honest, n_components, size)
    away = scatter(1.0, shape, generator_for(seed, "", "scatter"))
    kind = np.abs(sites.weights[:, None] - found.weights).sum(axis=-1).argmin(axis=1)
    if len(found.weights) >= n_honest:  # every site is one of those looked at, which matters where columns are few
        kind = np.arange(n_honest)
        apart = found.theta[:n_honest] - found.center
        length = row_norm(apart)[..., None]
        away = np.where(length > 0, apart / np.where(length > 0, length, 1.0), away)
    theta = found.center + sites.h[:, None] * away
    counts = generator_for(seed, "", "counts").multinomial(sites.n_rows, sites.weights)
    held = np.maximum(counts, LEAST_HELD).astype(float)
    root = np.repeat(np.sqrt(held / found.weights[kind]), size, axis=1)
    information = (found.known if sites.weights_known else found.information)[kind] * root[:, :, None] * root[:, None]
    chance = generator_for(seed, "", "chance").normal(size=(n_honest, n_components * size, 1))
    factor = np.linalg.cholesky(information)
    own = theta + np.linalg.solve(np.swapaxes(factor, 1, 2), chance).reshape(shape)
    alone = row_norm(own - theta)
    if alone_only:
        return Errors(alone, alone, alone[0])
    bad, bad_held = _bad(sites, seed)
    best = None
    for rule, penalty in (
        [(EmpiricalBayes(), np.inf)] if sites.model == "gmm" else [(REGRESSIONS, c) for c in PENALTIES]
    ):
        together, center = settle(own, held, information, bad, bad_held, rule, penalty)
        made = Errors(row_norm(together - theta), alone, row_norm(center - found.center))
        if best is None or made.together.max() < best.together.max():
            best = made
    assert best is not None
    return best


REGRESSIONS: CenterRule = Redescending()


def _bad(sites: Sites, seed: int) -> tuple[Array, Array]:
    """Estimates ``(B, R, q)`` and rows ``(B, R)`` of the bad sites."""
    center, generator = sites.found.center, generator_for(seed, "", "bad")
    shape, rows = (sites.n_bad, *center.shape), float(np.median(sites.n_rows)) / len(center)
    held = np.full(shape[:2], rows)
    if sites.sent is not None:
        return sites.sent[: sites.n_bad], held
    if not sites.colluding:
        return BAD_CENTER + np.sqrt(0.5 * BAD_VARIANCE) * generator.normal(size=shape), held
    size = shape[2]
    reach = np.sqrt(chdtri(size, CHANCE) * (np.square(sites.h) / size + 1.0 / rows))
    return center + np.broadcast_to(reach[:, None] * scatter(1.0, center.shape, generator), shape), held


def settle(
    own: Array, held: Array, information: Array, bad: Array, bad_held: Array, rule: CenterRule, penalty: float
) -> tuple[Array, Array]:
    """Where sites and center come to rest: ``(K, R, q)`` and ``(R, q)``.

    Parameters
    ----------
    own, held, information : (K, R, q), (K, R), (K, R q, R q) what each honest site would find alone, of so many rows.
    bad, bad_held : (B, R, q), (B, R) what the bad sites send.
    rule, penalty : of the center, C; infinity where the rule finds by itself how strongly to pull.

    Examples
    --------
    >>> own, held = np.array([[[0.0]], [[2.0]], [[1.0]]]), np.ones((3, 1))
    >>> theta, center = settle(own, held, np.ones((3, 1, 1)), own[:0], held[:0], EmpiricalBayes(), np.inf)
    >>> theta.ravel().round(3).tolist()
    [1.0, 1.0, 1.0]
    """
    n_honest, shape = len(own), own.shape
    rows = np.concatenate([held, bad_held])
    level = penalty * np.sqrt(shape[2] + np.log(len(rows))) / 0.9
    threshold = level / np.sqrt(rows)
    whole = np.repeat(held, shape[2], axis=1)
    step = information / whole[:, :, None]
    center = np.median(np.concatenate([own, bad]), axis=0)
    theta = stepped = own
    identity = np.eye(whole.shape[1])
    present = np.ones(len(rows), dtype=bool)
    for _ in range(ROUNDS):
        sent = np.concatenate([stepped, bad])
        found = rule(sent, rows, threshold, rows, center, present)
        away = row_norm(sent - found.center)
        kept = row_norm(found.shrunk - found.center) / np.where(away > 0, away, 1.0)
        part = np.repeat(kept[:n_honest], shape[2], axis=1)
        # theta - c = part (stepped - c) and stepped = theta - step (theta - own), solved for theta.
        matrix = (1.0 - part)[:, None] * identity + part[:, :, None] * step
        toward = part[:, :, None] * (step @ (own - found.center).reshape(n_honest, -1, 1))
        new = found.center + np.linalg.solve(matrix, toward).reshape(shape)
        stepped = new - (step @ (new - own).reshape(n_honest, -1, 1)).reshape(shape)
        moved = np.sqrt(held) * row_norm(new - theta)
        theta, center = new, found.center
        if moved.max() < SETTLED * np.sqrt(shape[2]):
            break
    return theta, center


def predict(design: Design, draws: int = DRAWS, seed: int = 0, *, calibrated: bool = True) -> Prediction:
    """What to expect of the default fit and of fitting every site alone."""
    return summarize([errors(sites_of(design, seed + i), seed + i) for i in range(draws)], design.model, calibrated)


def summarize(found: list[Errors], model: str, calibrated: bool = True) -> Prediction:
    """Medians over draws of the largest errors, times what simulations say."""
    largest = np.array([[np.max(errors) for errors in draw] for draw in found])
    together, alone, center = (float(value) for value in np.median(largest, axis=0))
    scale = CALIBRATED[model] if calibrated else Calibration(1.0, 1.0)
    ratio = float(np.median(largest[:, 0] / largest[:, 1]))
    return Prediction(scale.together * together, scale.alone * alone, scale.together * center, ratio)
