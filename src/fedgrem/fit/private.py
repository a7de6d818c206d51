"""A fit from noisy sums alone: what leaves a site is differentially private for its rows.

Few exchanges, and the budget of a site is spread over them: where every column lies, second moments, rows by cells
about a few points in the directions that matter, from which the center finds a start without asking further, and EM
steps of sums of shortened rows. How large the noise is, is known; it enters how much an estimate counts for, how far a
site is shrunk to the center, its verdict and its standard errors.
"""

from math import exp, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtrc, chdtri, gammainc, gammaincc, gammaln

from fedgrem.algorithms.base import on_center
from fedgrem.algorithms.center_rules import FEWEST_MIXED, EmpiricalBayes
from fedgrem.algorithms.centered import Centered
from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.errors import InputError
from fedgrem.families.base import LEAST_SHARE
from fedgrem.families.covariance import Identity, Tied
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.conversation import Phase
from fedgrem.fit.private_site import TASKS, Step, clip_of, step_parts
from fedgrem.fit.private_start import SURE, About, Circle, First, describe, find_start, matrix_of, sound, within_ranges
from fedgrem.fit.rounds import RoundRecord
from fedgrem.fit.spec import FitSpec
from fedgrem.fit.verdicts import FALSE_ALARM
from fedgrem.kernels.center import between_sites, median, row_norm, trust_within
from fedgrem.types import Array, FitResult, Influence, Params, map_arrays

HELD = 4.0
"""Times the noise in the mass of a component, that the middle site is to hold of it: fewer rows are likely nobody's."""
LOST_IN_NOISE = (
    "this fit, or a component of it, was lost in noise, and what it says is little: give more epsilon, rows or sites, "
    "narrower ranges, or fewer columns and components"
)
DOUBTFUL = 1.5
"""Times what is known of an estimate's variance: labels are not seen, masses are noisy, and estimates are many, so that
an honest one is now and then farther out than by its own noise."""


def private_fit(spec: FitSpec, names: tuple[str, ...]) -> Phase[FitResult]:
    """The center's side of the whole fit."""
    check_spec(spec)
    circle = Circle(spec, names)
    about = yield from describe(spec, circle)
    first = yield from find_start(spec, circle, about)
    return (yield from _Steps(spec, circle, names, about, first).play())


def check_spec(spec: FitSpec) -> None:
    """Refuse what cannot be fitted privately."""
    algorithm: Any = spec.algorithm
    if not isinstance(spec.family, Gaussian) or type(spec.family.covariance) not in (Identity, Tied):
        raise InputError(
            "a private fit is of Gaussian components with covariance_type='tied' or 'identity', got "
            f"{_words(spec.family)}; use one of these, or leave out privacy."
        )
    if not isinstance(algorithm, FedGrEM) or type(algorithm.center_rule) is not EmpiricalBayes:
        raise InputError(
            "a private fit has its own few steps and the default center rule; leave out algorithm, or privacy."
        )
    if algorithm.batch < 1.0 or algorithm.sites < 1.0:
        raise InputError("a private fit takes all rows of all sites; leave out batch and sites.")
    for name, odd in (("penalty", spec.penalty is not None), ("missing", spec.missing), ("starts", spec.given),
                      ("secure_sums", spec.secure_sums), ("a search over n_components", spec.candidate)):  # fmt: skip
        if odd is not False and odd is not None:
            raise InputError(f"a private fit does not go with {name}; leave one of them out.")


def _words(family: Any) -> str:
    covariance = getattr(family, "covariance", None)
    return f"the family {family.name!r}" + ("" if covariance is None else f" with {covariance.name!r}")


# -- steps


class _Steps:
    """EM steps from a start that all sites have, and what comes of them; everything in the units of the rows."""

    def __init__(self, spec: FitSpec, circle: Circle, names: tuple[str, ...], about: About, first: First) -> None:
        self.spec, self.circle, self.names, self.about = spec, circle, names, about
        count = len(names)
        self.params: Params = map_arrays(lambda leaf: np.repeat(leaf[None], count, axis=0), first.params)
        self.center, self.within = first.params.theta, first.within
        self.mass, self.estimate = np.zeros(self.params.weights.shape), self.params.theta
        """(K, R), (K, R, p) means over the steps that count."""
        self.records: list[RoundRecord] = []
        self.clear = about.clear
        """Whether every component holds clearly more rows of the middle site than noise alone would say."""

    def play(self) -> Phase[FitResult]:
        """All steps, each from where the one before it led."""
        for number in range(TASKS["private_step"].times):
            white = np.linalg.inv(np.linalg.cholesky(self.within))
            mail = Step(self.params, np.repeat(white[None], len(self.names), axis=0))
            sums, noise = yield from self.circle.ask("private_step", mail)
            before = self.params.theta, self.center
            found = self._take(number, sums, noise)
            self._record(*before)
        return self._result(found)

    def _take(self, number: int, sums: Array, noise: Array) -> "_Found":
        """One step's sums: estimates of the sites, the center, and the sites shrunk to it as far as the noise has it.

        A step leads near to where EM ends, whatever its start, so what several steps say is averaged: the rows are the
        same, but the noise is new every time. The first one, from a start that is nobody's, does not count.
        """
        size, kept = self.params.theta.shape[-1], max(number - 1, 0)
        limit, (part, length, _) = clip_of(size), step_parts(self.spec)
        slope, variance = shortened_moments(size, limit)
        mass, way, _ = self._split(sums)
        of_mass, of_way = (noise / part)[:, None], (noise * limit / length)[:, None]
        factor = np.linalg.cholesky(self.within)
        held = np.maximum(mass, np.maximum(SURE * of_mass, 1.0))
        estimate = self.params.theta + (way / (slope * held)[..., None]) @ factor.T
        estimate = within_ranges(self.spec, estimate)
        self.mass = (kept * self.mass + mass) / (kept + 1)
        self.estimate = (kept * self.estimate + estimate) / (kept + 1)
        if number == 0:
            pooled = self._split(self.circle.pooled(sums, noise).sums)
            moved = pooled[1] / (slope * np.maximum(pooled[0], 1.0))[:, None]
            self.center = within_ranges(self.spec, self.center + moved @ factor.T)
        self._estimate_noise(number, sums, noise, factor)
        here, white = self.circle.here, np.linalg.inv(factor)
        of_mass = of_mass / sqrt(kept + 1)
        self.clear = self.about.clear and bool(np.all(median(self.mass[here]) >= HELD * median(of_mass[here])))
        held = np.maximum(self.mass, np.maximum(SURE * of_mass, 1.0))
        rows = 1.0 / (variance / slope**2 / held + np.square(of_way / (slope * held)) / (kept + 1))
        rows = np.where(here[:, None], rows, 1e-9)
        theta = np.where(here[:, None, None], self.estimate, self.center) @ white.T
        say, all_the_way = np.where(here[:, None], rows, 0.0), np.full(rows.shape, np.inf)
        # Of few sites the solver is begun in their middle: from far away its steps may lead astray.
        begin = self.center @ white.T if here.sum() >= FEWEST_MIXED else median(theta[here])
        between, _ = between_sites(theta, rows, begin, here)
        square = np.square(theta - begin).sum(axis=-1)
        trusted = trust_within(square, DOUBTFUL * (between + 1.0 / rows), size)
        found = EmpiricalBayes().given(between, trusted, theta, say, all_the_way, rows, begin, here)
        self.center = found.center @ factor.T
        on = on_center(found.shrunk, found.center)
        shrunk = np.where(on, self.center, found.shrunk @ factor.T)
        self.params = Params(self._weights(of_mass), shrunk)
        return _Found(found, rows, theta)

    def _split(self, sums: Array) -> tuple[Array, Array, Array]:
        """Masses (..., R), ways (..., R, p) in units of the noise, and sums of products (..., p (p + 1) / 2)."""
        n_components, size = self.params.theta.shape[-2:]
        limit, (part, length, product) = clip_of(size), step_parts(self.spec)
        mass, way, products = np.split(sums, [n_components, n_components * (1 + size)], axis=-1)
        way = way.reshape(*way.shape[:-1], n_components, size) * (limit / length)
        return mass / part, way, products * (limit**2 / product if product else 0.0)

    def _estimate_noise(self, number: int, sums: Array, noise: Array, factor: Array) -> None:
        """The covariance within components, of all sites together."""
        if not step_parts(self.spec)[2]:
            return
        mass, way, products = self._split(self.circle.pooled(sums, noise).sums)
        size, limit = len(factor), clip_of(len(factor))
        slope, _ = shortened_moments(size, limit)
        total = max(float(mass.sum()), 1.0)
        square = matrix_of(products) / total
        if number == 0:
            moved = way / (slope * np.maximum(mass, 1.0))[:, None]
            square = square - (moved.T * np.maximum(mass, 0.0)) @ moved / total
        told = float(np.trace(square))
        square = square * (size * _scale_of(told, size, limit) / max(told, 1e-9))
        self.within = factor @ sound(square, 0.1, 10.0) @ factor.T

    def _weights(self, noise: Array) -> Array:
        """(K, R) shrunk to the median site's as far as they differ no more than chance and noise have it."""
        n_components, here = self.mass.shape[1], self.circle.here
        n_rows = np.maximum(self.mass.sum(axis=1, keepdims=True), 1.0)
        share = np.maximum(self.mass / n_rows, 0.0)
        share = share / np.maximum(share.sum(axis=1, keepdims=True), 1e-9)
        common = median(share[here])
        chance = np.maximum(common * (1.0 - common), 1e-9) / n_rows + np.square(noise / n_rows)
        # The middle of a squared standard normal number is 0.455.
        between = np.maximum(median((np.square(share - common) / 0.455 - chance)[here]), 0.0)
        kept = between / (between + chance)
        self.weights_variance = kept * chance
        weights = np.where(here[:, None], common + kept * (share - common), common)
        weights = np.maximum(weights, LEAST_SHARE / n_components)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def _record(self, before: Array, center: Array) -> None:
        moved = row_norm(self.params.theta - before) / (1.0 + row_norm(before))
        apart = row_norm((self.params.theta - self.center) @ np.linalg.inv(np.linalg.cholesky(self.within)).T)
        unknown, none = np.full(len(self.names), np.nan), np.zeros(())
        of_center = np.asarray(np.max(row_norm(self.center - center) / (1.0 + row_norm(center))))
        self.records.append(
            RoundRecord(unknown, moved.max(axis=1), of_center, none, apart.max(axis=1), none, unknown, none)
        )

    def _result(self, last: "_Found") -> FitResult:
        """All of it, in the units of the fit."""
        found, rows, family = last.found, last.rows, self.spec.family
        count, (n_components, size) = len(self.names), self.center.shape
        assert found.between is not None
        units = np.zeros(size), np.ones(size)
        if self.spec.units.standardize:
            units = self.about.location, self.about.scale
        within = self.within / np.outer(units[1], units[1])
        noise: Array | None = None
        if family.noise_shape(n_components, size) is not None:
            noise = family.covariance.from_matrices(within)[None]  # type: ignore[attr-defined]
        distance = row_norm(found.shrunk - found.center)
        # As in the rule: what of a site's distance from the center it loses, and what sites weigh there.
        part = found.trust / (1.0 + rows * found.between)
        say = found.trust * rows / (1.0 + rows * found.between) * self.circle.here[:, None]
        of_center = 1.0 / np.maximum(say.sum(axis=0), 1e-300)
        variance = (1.0 - part) / rows + np.square(part) * of_center
        if not self.clear:
            variance, of_center = np.full_like(variance, np.nan), np.full_like(of_center, np.nan)
        n_rows = np.maximum(self.mass.sum(axis=1), 1.0)
        threshold = part * row_norm(last.theta - found.center)
        errors = {
            "weights_variance": self.weights_variance,
            "theta_covariance": variance[..., None, None] * within,
            "center_covariance": of_center[:, None, None] * within,
        }
        errors = errors if self.spec.wants_errors(size) else {}
        history = {name: np.array([getattr(record, name) for record in self.records]) for name in RoundRecord._fields}
        return FitResult(
            site_names=self.names,
            weights=self.params.weights,
            theta=(self.params.theta - units[0]) / units[1],
            center=(self.center - units[0]) / units[1],
            noise=None if noise is None else np.repeat(noise[None], count, axis=0),
            center_noise=noise,
            distance=distance,
            n_rows=n_rows,
            n_rounds=len(self.records),
            converged=self.clear,
            unsettled=(),
            history=history,
            influence=Influence(say, threshold, np.zeros(()), found.iterations, found.gap, found.between),
            start_choice=np.ones(count, dtype=int),
            location=units[0] if self.spec.units.standardize else None,
            scale=units[1] if self.spec.units.standardize else None,
            look=self._evidence(last),
            **errors,
            seen=np.repeat(n_rows[:, None], size, axis=1),
        )

    def _evidence(self, last: "_Found") -> dict[str, Array]:
        """How far each site is from the center, and what the others' differences, chance and its noise explain of that.

        By the names that verdicts have elsewhere: root mean squares over a site's rows, in units of the noise.
        """
        assert last.found.between is not None
        size, here = float(self.center.size), self.circle.here
        usual = last.found.between + 1.0 / last.rows
        square = np.square(last.theta - last.found.center).sum(axis=-1)
        weights = self.params.weights
        distance, expected = (np.sqrt((weights * one).sum(axis=1)) for one in (square, usual * self.center.shape[1]))
        p_value = np.where(here, chdtrc(size, (square / usual).sum(axis=1)), np.nan)
        limit = expected * sqrt(float(chdtri(size, FALSE_ALARM)) / size)
        nothing = np.full(len(here), np.nan)
        return {
            "distance": distance, "expected": expected, "limit": limit, "p_distance": p_value, "p_value": p_value,
            "fit": nothing, "p_fit": nothing, "judged_from": np.zeros(len(here)),
        }  # fmt: skip


class _Found(NamedTuple):
    """What the last step came to, in units of the noise."""

    found: Centered
    rows: Array
    """(K, R) what an estimate is worth: how many rows without noise would be as accurate."""
    theta: Array
    """(K, R, p) estimates before they were shrunk."""


def shortened_moments(size: int, limit: float) -> tuple[float, float]:
    """By how much the mean of shortened standard normal vectors follows a small shift, and their variance.

    Examples
    --------
    >>> [round(value, 3) for value in shortened_moments(3, 100.0)]
    [1.0, 1.0]
    """
    half, cut = 0.5 * size, 0.5 * limit * limit
    inside = float(gammainc(half, cut))
    slope = inside
    if size > 1:
        inverse = np.exp(gammaln(half - 0.5) - gammaln(half)) / sqrt(2.0) * gammaincc(half - 0.5, cut)
        slope += limit * (1.0 - 1.0 / size) * float(inverse)
    return slope, float(gammainc(half + 1.0, cut)) + limit * limit * (1.0 - inside) / size


def _scale_of(square: float, size: int, limit: float) -> float:
    """The variance of the coordinates of normal vectors whose mean squared length is this once they are shortened."""

    def away(log_variance: float) -> float:
        unit = exp(0.5 * log_variance)
        return unit * unit * size * shortened_moments(size, limit / unit)[1] - square

    low, high = -2.0, 2.0
    if away(low) >= 0.0 or away(high) <= 0.0:
        return exp(low if away(low) >= 0.0 else high)
    return exp(brentq(away, low, high))
