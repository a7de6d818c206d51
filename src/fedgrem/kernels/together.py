r"""Who says the same, and who stands apart together: groups among K sites' estimates that chance does not explain.

Estimates of one component are ``(K, q)`` in units of the noise, and every coordinate of an honest one has a variance of
about :math:`\tau^2 + 1/m`, m the rows it rests on. Two of them are rarely much closer than their rows allow, and the
mean of some of them rarely far from that of the others. Both tests are by pairs and by subsets of the sites: no center
is asked for, which those who stand apart might have moved.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import betaln, chdtri, fdtrc, gammaln

from fedgrem.kernels.center import MOST_ROWS, median, row_norm
from fedgrem.kernels.robust import square_distances
from fedgrem.types import Array

FARTHEST = 1e3
"""Times the usual distance from the middle to which estimates are cut: more would only cost digits."""
LEAST = 0.2
"""Part of the middle site's rows of a component with which a site knows where it is."""
LEAD = 3.0
"""Log-likelihood by which a site is rather one of a group than of the others: twenty times as likely."""
TURNS = 10
"""Times that a group is sought again along the line from the others to it."""
MOST_AT_ONCE = 10**7
"""Numbers of a table of candidates."""


class Group(NamedTuple):
    """Sites that stand apart from the others, together."""

    members: Array
    """Their places."""
    p_value: float
    """The chance that any group of honest sites stands apart like that, whichever it is."""


def nearly_same(points: Array, rows: Array, chance: float) -> Array:
    """The place of the first site that says nearly the same as each, ``(K,)``; its own where it is alone.

    Estimates from rows of their own are not as close to each other as that but with this chance, over all pairs.

    Parameters
    ----------
    points : (K, R, q) estimates in units of the noise; rows : (K, R) that they rest on.

    Examples
    --------
    >>> points = np.random.default_rng(0).normal(size=(6, 2, 10))
    >>> points[4] = points[1] + 0.01
    >>> nearly_same(points, np.ones((6, 2)), 0.01).tolist()
    [0, 1, 2, 3, 1, 5]
    """
    n_sites, size = len(points), points.shape[-1]
    precision = np.asarray(rows, dtype=float)
    # Where a site has next to no rows of a component, it stands where it was told to, and that is no agreement.
    some = rows >= LEAST * median(rows)
    both = some[:, None] & some
    apart = np.where(both, square_distances(points) / (1.0 / precision[:, None] + 1.0 / precision), 0.0).sum(axis=-1)
    shared = np.maximum(both.sum(axis=-1), 1)
    # Where rows move estimates less than they might, sites are close to each other for that reason.
    scale = min(1.0, float(np.median(_middle_of_others(apart / shared))) / size)
    degrees = _degrees(points, precision) / points[0].size * size * shared
    least = chdtri(degrees, 1.0 - chance / (0.5 * n_sites * (n_sites - 1))) / degrees
    close = (apart < scale * size * shared * least) & both.any(axis=-1) | np.eye(n_sites, dtype=bool)
    first = np.arange(n_sites)
    while True:  # who is close to one that is close to a third is one of them
        found = np.where(close, first, n_sites).min(axis=1)
        if (found == first).all():
            return first
        first = found


def standing_apart(points: Array, rows: Array, size: Array, most: int, chance: float) -> list[Group]:
    r"""Groups of two and more sites, at most ``most``, with a mean farther from that of the others than chance has it.

    With S a set of g sites and B the squared distance of its mean from that of the others, in units of the variance of
    that difference, B over the mean square within the others follows an F distribution, and one in
    :math:`\binom{K}{g}` of such chances is asked for: so S may be sought. Where sites differ more along the line
    between the two means than in other directions, that is what B is held against. Candidates are every site with its
    nearest ones, and the best of these again along that line. One that stands alone is put aside.

    Parameters
    ----------
    points : (K, R, q) estimates in units of the noise; rows : (K, R) that they rest on.
    size : (K,) how many sites say this; they count as one, and are a group by themselves.

    Examples
    --------
    >>> points = np.random.default_rng(0).normal(size=(10, 1, 20))
    >>> points[[2, 5, 6]] += 1.0
    >>> [group.members.tolist() for group in standing_apart(points, np.ones((10, 1)), np.ones(10), 4, 0.01)]
    [[2, 5, 6]]
    """
    middle = np.median(points, axis=0)
    length = row_norm(points - middle)
    cut = np.minimum(1.0, FARTHEST * median(length) / np.where(length > 0, length, 1.0))
    away, counted = cut[..., None] * (points - middle), _counted(rows)
    left, found = np.arange(len(points)), list[Group]()
    while len(left) >= 4 and most > 0:  # of fewer nobody can say who stands apart
        members, log_chance = _farthest(away[left], counted[left], size[left], most)
        if log_chance > np.log(chance):
            break
        members = _those_who_belong(away[left], counted[left], members)
        if size[left[members]].sum() > 1:
            found.append(Group(np.sort(left[members]), float(np.exp(log_chance))))
        most -= int(size[left[members]].sum())
        left = np.delete(left, members)
    return found


def _counted(rows: Array) -> Array:
    """Rows (K, R) as far as they count: whatever a site claims."""
    return np.asarray(np.minimum(rows, MOST_ROWS * median(rows)))


def _middle_of_others(values: Array) -> Array:
    """Of pairs ``(K, K, ...)``, every site's (low) median over the others: a majority of honest ones bounds it."""
    n_sites = len(values)
    own = np.eye(n_sites, dtype=bool).reshape(n_sites, n_sites, *(1,) * (values.ndim - 2))
    return np.asarray(np.sort(np.where(own, np.inf, values), axis=1)[:, (n_sites - 2) // 2])


def _degrees(points: Array, precision: Array) -> float:
    """In how many directions sites differ, of R q: fewer where they do so along some directions only.

    The squared cosine between two isotropic vectors is one over the dimension on average. That of the middle pair is
    read off, which a minority does not move, and believed as far as it is clearly less.
    """
    n_sites, most = len(points), points[0].size
    white = (np.sqrt(precision)[..., None] * (points - np.median(points, axis=0))).reshape(n_sites, -1)
    length = row_norm(white)
    cosine = (white @ white.T) / np.maximum(length[:, None] * length, 1e-300)
    pairs = cosine[np.triu_indices(n_sites, 1)] + 1.0 / (n_sites - 1.0)
    found = chdtri(1.0, 0.5) / max(float(np.median(pairs * pairs)), 1e-300)
    return float(np.clip(found * (1.0 + 3.2 / np.sqrt(len(pairs))), 1.0, most))


def _farthest(points: Array, rows: Array, size: Array, most: int) -> tuple[Array, float]:
    """Of all candidates the least probable, its places and the logarithm of its chance."""
    n_sites = len(points)
    apart = square_distances(points)
    # Between-site variance of every component: how much farther sites are from each other than their rows explain.
    excess = 0.5 * (apart / points.shape[-1] - 1.0 / rows[:, None] - 1.0 / rows)
    between = np.maximum(np.median(_middle_of_others(excess), axis=0), 0.0)
    variance = between + 1.0 / rows
    near = (apart / (variance[:, None] + variance)).sum(axis=-1)
    np.fill_diagonal(near, -1.0)
    least = float(np.median(1.0 / rows / variance))
    splits = _Splits(points, variance, size, min(most, (n_sites - 1) // 2), least)
    orders = np.argsort(near, axis=1, kind="stable")
    members, log_chance = splits.best(orders)
    for _ in range(TURNS):
        again = splits.best(np.argsort(-splits.along(members), kind="stable")[None])
        if again[1] >= log_chance:
            break
        members, log_chance = again
    others = np.setdiff1d(np.arange(n_sites), members)
    return members, splits.log_chance(members, others, _degrees(points[others], 1.0 / variance[others]))


def _those_who_belong(points: Array, rows: Array, members: Array) -> Array:
    """Of a group those who are nearer to the rest of it than to the others; the farthest where nobody is.

    One that is far off makes a group of any other, and that other none of its own.
    """
    weighted, others = rows[..., None] * points, np.ones(len(points), dtype=bool)
    others[members] = False

    def mean(which: Array) -> Array:
        return np.asarray(weighted[which].sum(axis=0) / rows[which].sum(axis=0)[:, None])

    def lead(k: int, rest: Array) -> float:
        """By how much k is nearer to the rest of the group."""
        center, base = mean(rest[rest != k]), mean(others)
        return float(np.vecdot(weighted[k] - rows[k][:, None] * (center + base) / 2.0, center - base).sum())

    while len(members) > 1:
        leads = np.array([lead(k, members) for k in members])
        if leads.min() >= LEAD:
            break
        members = np.delete(members, leads.argmin())
    return members


def _log_beyond(ratio: Array, degrees: float, rest: Array) -> Array:
    """The logarithm of the chance that an F number exceeds this, also where the chance is too small for a number."""
    a, b, x = 0.5 * rest, 0.5 * degrees, rest / (rest + degrees * ratio)
    chance = fdtrc(degrees, rest, ratio)
    leading = a * np.log(x) + b * np.log1p(-x) - np.log(a) - betaln(a, b)
    return np.asarray(np.where(chance > 1e-200, np.log(np.maximum(chance, 1e-300)), leading))


class _Splits:
    """Ways to split sites in two, and how improbable each is."""

    def __init__(self, points: Array, variance: Array, size: Array, most: int, least: float) -> None:
        n_sites = len(points)
        self.points, self.variance, self.size, self.most, self.least = points, variance, size, most, least
        self.mass = 1.0 / variance
        self.weighted = self.mass[..., None] * points
        self.square = (self.weighted * points).sum(axis=-1)
        self.total = tuple(leaf.sum(axis=0) for leaf in (self.mass, self.weighted, self.square))
        self.n_numbers = points[0].size
        taken = np.arange(1, most + 1)
        self.rest = n_sites - taken - 1
        self.ways = np.log(most) + gammaln(n_sites + 1.0) - gammaln(taken + 1.0) - gammaln(n_sites + 1.0 - taken)

    def best(self, orders: Array) -> tuple[Array, float]:
        """Of the first sites of every order ``(L, K)`` the least probable group."""
        parts = 1 + orders.size * self.most * max(self.n_numbers // len(self.points), 1) // MOST_AT_ONCE
        full = float(self.n_numbers)
        found = np.concatenate([self._log_chances(part, full) for part in np.array_split(orders, parts)])
        place, last = np.unravel_index(int(found.argmin()), found.shape)
        return orders[place, : last + 1], float(found[place, last])

    def log_chance(self, members: Array, others: Array, degrees: float) -> float:
        """Of one group, where sites differ in so many directions."""
        return float(self._log_chances(np.concatenate([members, others])[None], degrees)[0, len(members) - 1])

    def _log_chances(self, orders: Array, degrees: float) -> Array:
        first = orders[:, : self.most]
        mass, total, square = (leaf[first].cumsum(axis=1) for leaf in (self.mass, self.weighted, self.square))
        mass_left, total_left, square_left = (
            whole - part for whole, part in zip(self.total, (mass, total, square), strict=True)
        )
        gap = total / mass[..., None] - total_left / mass_left[..., None]
        known = 1.0 / (1.0 / mass + 1.0 / mass_left)
        between = (np.vecdot(gap, gap) * known).sum(axis=-1)
        within = (square_left - np.vecdot(total_left, total_left) / mass_left).sum(axis=-1)
        scale = np.maximum(within / (self.rest * self.n_numbers), self.least)
        scale = np.maximum(scale, self._along(orders, gap, known))
        chance = self.ways + _log_beyond(between / self.n_numbers / scale, degrees, self.rest * degrees)
        # By itself only what several sites say is a group, which leaves fewer to choose from.
        several = self.size > 1
        chance[:, 0] += np.where(several[first[:, 0]], np.log(max(several.mean(), 1e-300)), 0.0)
        return np.asarray(np.where(self.size[first].cumsum(axis=1) <= self.most, chance, 0.0))

    def _along(self, orders: Array, gap: Array, known: Array) -> Array:
        """How much sites differ along the line between the two means, within both, relative to their variances."""
        shape = (*gap.shape[:2], len(self.points))
        line = (gap * known[..., None]).reshape(-1, self.n_numbers)
        place = (line @ self.points.reshape(len(self.points), -1).T).reshape(shape)
        weight = 1.0 / np.maximum(np.vecdot(gap, gap) * known**2 @ self.variance.T, 1e-300)
        inside = np.argsort(orders, axis=1)[:, None] <= np.arange(self.most)[:, None]
        told = np.zeros(shape[:2])
        for part in (inside, ~inside):
            share = weight * part
            middle = (share * place).sum(axis=-1, keepdims=True) / share.sum(axis=-1, keepdims=True)
            told += (share * (place - middle) ** 2).sum(axis=-1)
        return told / (len(self.points) - 2)

    def along(self, members: Array) -> Array:
        """Where all sites are on the line from the others to a group."""
        mass, total = self.mass[members].sum(axis=0), self.weighted[members].sum(axis=0)
        gap = total / mass[:, None] - (self.total[1] - total) / (self.total[0] - mass)[:, None]
        return np.asarray(np.vecdot(self.weighted, gap).sum(axis=-1))
