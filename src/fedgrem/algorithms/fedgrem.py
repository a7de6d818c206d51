"""FedGrEM, Algorithm 1 of Tian, Weng and Feng, "Towards the Theory of Unsupervised Federated Learning" (ICML 2024)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from fedgrem.algorithms.base import (
    Options,
    Pull,
    Traits,
    for_all,
    full_penalty,
    keep_absent,
    lots,
    middle,
    middle_weights,
    on_center,
)
from fedgrem.algorithms.center_rules import (
    CENTER_RULES,
    Alternating,
    EmpiricalBayes,
    Redescending,
    away_from_colluders,
    pool_weights,
)
from fedgrem.algorithms.centered import Centered, CenterRule
from fedgrem.algorithms.extrapolation import Place, begin_path, extrapolate
from fedgrem.algorithms.holders import FEWEST, by_holders, without_lacking
from fedgrem.algorithms.state import State, Told, Toward, along, bounded_scale, following, of_sites, reseeded
from fedgrem.data.stack import Stack
from fedgrem.families.base import Family, Pulled, weights_of
from fedgrem.kernels.center import between_sites, capped_rows, row_norm, shrink
from fedgrem.kernels.log_ratio import shrink_weights
from fedgrem.types import Array, Broadcast, Central, Influence, Params, Upload

LEAST_PART = 0.05
"""A component of less than this, relative to an equal share of the rows, is taken to hold this."""
FAST_ROUNDS, LONG_ROUNDS = 150, 450
"""Rounds in which the center may extrapolate, and in which sites may take several steps: what has not settled by the
first, because it oscillates, goes on without; what has not by the second, by the plain rounds of the paper. What only
creeps, as superfluous components do along flat likelihoods, would take ten times the rounds by plain ones."""
LIKENESS_ROUNDS = 40
"""Rounds in which it is estimated how much sites differ, where the center rule does so."""
FIRST_PENALTY = 1.0
"""lambda before round 1."""
GROWTH = 1.25
"""By what mini-batches grow from round to round until they are all rows: their noise shrinks as the sites settle."""
LEAST_BATCH = 20.0
"""Rows per component of the middle site that a mini-batch has at the least: of fewer, steps are mostly noise."""


@dataclass(frozen=True)
class FedGrEM(Options):
    r"""Federated gradient EM: ascent steps at every site, then shrinkage to a common center.

    Round t takes, at every site, an E-step and a gradient step of length ``step_size / weight``; then, per component,
    the center solves

    .. math:: \min_{\nu, c} \sum_k n_k \bigl(\tfrac12\|\nu_k - \tilde\theta_k\|^2 + \tau_k \|\nu_k - c\|\bigr),
              \quad \tau_k = \lambda_t / \sqrt{n_k},

    with :math:`\lambda_t = \text{decay}\cdot\lambda_{t-1} + C\sqrt{q + \log K}`, :math:`\lambda_0 = 1`.

    Where a family's curvature forces a shorter step (factor s, 1 for unit Gaussians), the site's quadratic is weighted
    by 1/s and its threshold by s: the proximal gradient step of that length. The fixed point then does not depend on s.
    Where a family estimates its noise, distances are measured in units of the common one, so that the pull does not
    depend on the units of the columns; and the sites' noise, their exact M-step, goes through the same problem in
    coordinates about the common one, with :math:`\lambda = C_\Sigma\sqrt{s + \log K}`.

    Four things differ from the paper unless :meth:`paper` is asked for. The :math:`n_k` above are
    :math:`n_k R w_{kr}`, the rows that the component holds at the site, so that a rare component, known badly, is
    pulled more and counts less. The center rule gives no say to sites that are far off. A site takes several steps a
    round (and, in families that say so, several on the sums of one E-step), each followed by the shrinkage towards the
    center it was sent, the last one's being left to the center. And
    the center extrapolates its own path (Anderson acceleration), taking along every component that sits on it; where
    its residual grows instead, it goes back and forgets the path. The last two save rounds, that is messages, and do
    not move the fixed point.

    Parameters
    ----------
    center : the center rule, an object of :mod:`fedgrem.algorithms.center_rules` or
        :mod:`fedgrem.algorithms.robust_rules`, or its name.
    step_size : C_eta, below 2.
    step_weights : whose weight a step is divided by: that of the present E-step, floored at a fifth of 1/R, which
        settles; or the paper's initial one, which may not.
    local_steps : gradient steps of a site per round.
    memory : how many steps of the center an extrapolation looks back on; 0 for none.
    penalty_decay : of the recursion of lambda.
    penalty_rows : which rows an estimate counts for: those its component holds, or all rows of the site.
    noise_penalty : :math:`C_\Sigma`; None chooses it with ``penalty="auto"``, and takes the penalty otherwise.
    batch : share of its rows, drawn anew, that a site uses in a local step of round 1; it grows by a quarter a round
        until it is all rows, so that a fit settles where it would without.
    sites : share of the sites that is asked in a round: in turn, in an order drawn anew for every turn. The others
        count by what they sent last.
    pool_weights : whether mixture weights are shrunk to common ones too, by the same rule in log-ratio coordinates;
        "auto" asks held-out rows, where penalties are compared.
    """

    name: ClassVar[str] = "fedgrem"
    traits: ClassVar[Traits] = Traits("FedGrEM", "pulled", pulls=True)
    center: Any = field(default_factory=EmpiricalBayes)
    step_size: float = 0.95
    step_weights: Literal["current", "initial"] = "current"
    local_steps: int = 10
    memory: int = 5
    penalty_decay: float = 0.1
    penalty_rows: Literal["component", "site"] = "component"
    noise_penalty: float | None = None
    batch: float = 1.0
    sites: float = 1.0
    pool_weights: bool | Literal["auto"] = "auto"

    @classmethod
    def paper(cls, **options: Any) -> "FedGrEM":
        """Algorithm 1 to the letter: one step by the initial weights, all rows of a site, two alternating sweeps."""
        letter: dict[str, Any] = {
            "center": Alternating(2), "step_weights": "initial", "local_steps": 1, "memory": 0, "penalty_rows": "site",
            "pool_weights": False,
        }  # fmt: skip
        return cls(**(letter | options))

    def invited(self, seed: int, number: int, names: tuple[str, ...]) -> Array:
        """(K,) a random part of the sites, at least two, and all in turn; in round 1 everyone."""
        n_sites, count = len(names), max(2, round(self.sites * len(names)))
        if number == 0 or count >= n_sites:
            return np.ones(n_sites, dtype=bool)
        turn, place = divmod(number - 1, -(-n_sites // count))
        order = np.argsort(lots(seed, "sites", turn, names))
        drawn = np.take(order, range(place * count, (place + 1) * count), mode="wrap")
        return np.isin(np.arange(n_sites), drawn)

    def _batch(self, central: Central) -> float:
        """The share of their rows that sites use in the next round."""
        if self.batch == 1.0:
            return 1.0
        least = LEAST_BATCH * central.params.weights.shape[-1] / float(np.median(central.n_rows))
        return float(min(1.0, max(self.batch * GROWTH ** int(central.extra.played), least)))

    def _is_within(self, played: Array, rounds: int) -> bool:
        """Whether sites have been asked less often than that."""
        return bool(played * self.sites < rounds)

    # -- before round 1

    def begin(self, family: Family, start: Params, n_rows: Array, pull: Pull) -> Central:
        """Begin at the coordinate-wise median of the starts, with lambda_0."""
        center, noise = np.median(start.theta, axis=0), middle(start.noise)
        first = start.weights if self.step_weights == "initial" else None
        n_sites, (*_, n_components, size) = len(n_rows), start.theta.shape
        of_weights = full_penalty(pull.weights_penalty, n_components - 1.0, n_sites) + np.zeros(pull.penalty.shape)
        state = State(
            np.zeros((), dtype=int),
            # No penalty is no pull at all, from the first round: lambda_0 is not to linger where nothing is shared.
            np.where(pull.penalty == 0, 0.0, FIRST_PENALTY),
            full_penalty(pull.penalty, size, n_sites),
            of_sites(of_weights, pull.pulled),
            capped_rows(n_rows),
            pull,
            first,
            noise,
        )
        if self.memory:
            state = state._replace(path=begin_path(start, center, noise, self.memory))
        if self.sites < 1.0:
            state = state._replace(told=Told(start, np.ones(start.weights.shape), np.zeros(n_sites, dtype=bool)))
        if pull.estimated:
            units = None if noise is None else family.open(None, noise, start.theta.shape[-1])
            theta, about = (family.whiten(t, units) for t in (start.theta, center))
            between, trusted = between_sites(theta, self._rows(along(n_rows, start.weights), start.weights), about)
            state = state._replace(between=between, trust=trusted)
        if pull.lacking is not None:
            trusted = np.ones(pull.lacking.shape) if state.trust is None else state.trust
            own = (~pull.lacking).sum(axis=0) < FEWEST
            state = state._replace(lacking=pull.lacking, trust=np.where(own, 0.0, trusted))
        common = None if self.pool_weights is False else middle_weights(start.weights)
        return Central(start, center, n_rows, noise, state, common)

    def broadcast(self, family: Family, central: Central) -> Broadcast:
        """Each site gets its own parameters back, and what pulls on them between its steps."""
        state: State = central.extra
        n_sites = len(central.n_rows)
        steps = self.local_steps if self._is_within(state.played, LONG_ROUNDS) else 1
        penalty = of_sites(self._next_penalty(state), state.pull.pulled)
        return Broadcast(
            central.params,
            Toward(
                for_all(central.center, n_sites),
                penalty,
                None if central.noise is None else for_all(central.noise, n_sites),
                np.full(n_sites, steps),
                np.full(n_sites, int(state.played)),
                state.first_weights,
                None if central.weights is None else for_all(central.weights, n_sites),
                None if central.weights is None else state.of_weights,
                None if self.batch == 1.0 else np.full(n_sites, self._batch(central)),
                None if state.between is None else for_all(state.between, n_sites),
                state.trust,
            ),
        )

    # -- at a site

    def local_step(self, family: Family, stack: Stack, sent: Broadcast, seed: int) -> Upload:
        """E-step and one gradient step on every site's rows; or several, shrunk towards the center in between."""
        toward: Toward = sent.extra
        weights, theta, noise = sent.params
        width = stack.rows.shape[-1]
        n_rows = along(stack.n_rows, weights)
        steps, played = int(toward.steps[0]), int(toward.round[0])
        share = 1.0 if toward.batch is None else float(toward.batch[0])
        scale = family.open(stack, noise, width)
        # The common noise is the same for all sites of a stack.
        units = None if toward.noise is None else family.open(None, toward.noise[:1], width)
        for step in range(steps):
            here = stack
            if share < 1.0:
                here = stack.batch(seed, played * self.local_steps + step, share)
                scale = family.open(here, noise, width)
            params = Params(weights, theta, noise)
            sums = family.expect(here, params, scale, scored=step == steps - 1)
            weights = weights_of(sums)
            pull = None if steps == 1 else self._pull(family, toward, units, n_rows, weights)
            if toward.between is None:
                theta, step_scale = family.ascend(here, params, sums, self.step_size, toward.first_weights, pull)
            else:
                theta, step_scale = family.maximize(here, params, sums), np.ones_like(weights)
            if pull is not None and step < steps - 1:
                if toward.weights is not None and toward.weights_penalty is not None and toward.weights_penalty.any():
                    weights = shrink_weights(weights, toward.weights, toward.weights_penalty[..., None], n_rows)
                theta = pull(theta, step_scale)
        about = theta
        if noise is not None and family.has_target:
            # Where the site ends: of n responses, its own R q coefficients explain some of the noise away.
            about = (pull or self._pull(family, toward, units, n_rows, weights))(theta, step_scale)
        noise = family.noise_step(sums, about, noise)
        return Upload(Params(weights, theta, noise), step_scale, stack.n_rows, sums.log_likelihood)

    def _pull(self, family: Family, toward: Toward, units: Any, n_rows: Array, weights: Array) -> Pulled:
        """What shrinks sites towards the center they were sent, between their steps; ``n_rows`` (c, ..., 1)."""
        within = toward.penalty[..., None] / np.sqrt(n_rows * self.share(weights))
        part: Array | None = None
        if toward.trust is not None:
            apart = 0.0 if toward.between is None else self._rows(n_rows, weights) * toward.between
            part = toward.trust / (1.0 + apart)

        def pull(theta: Array, step_scale: Array) -> Array:
            away = row_norm(family.whiten(theta - toward.center, units))
            return shrink(theta, toward.center, within * bounded_scale(step_scale), away, part)

        return pull

    # -- at the center

    def _next_penalty(self, state: State) -> Array:
        return np.asarray(self.penalty_decay * state.penalty + state.growth)

    def share(self, weights: Array) -> Array:
        """(..., R) what a component counts for at the center: its part of its site's rows, relative to an even one."""
        if self.penalty_rows == "site":
            return np.ones_like(weights)
        return np.asarray(np.maximum(weights * weights.shape[-1], LEAST_PART))

    def _rows(self, n_rows: Array, weights: Array) -> Array:
        """(K, ..., R) how many rows a component holds; ``n_rows`` (K, ..., 1)."""
        return np.asarray(n_rows * self.share(weights) / weights.shape[-1])

    def central_step(
        self, family: Family, central: Central, uploads: Upload, present: Array
    ) -> tuple[Central, Influence]:
        """Find the penalized center of every component and shrink the sites towards it."""
        state: State = central.extra
        sent, step_scale = keep_absent(uploads.params, central.params, present), uploads.step_scale
        if state.told is not None:
            scales = np.where(along(present, step_scale), step_scale, state.told.step_scale)
            told = Told(keep_absent(uploads.params, state.told.params, present), scales, state.told.known | present)
            state = state._replace(told=told)
            sent, step_scale, present = told
        common = central.noise
        if common is not None and self.center_rule.picks_columns:
            common = common.mean(axis=-2, keepdims=True)  # in one unit for all components, to compare them in
        units = None if common is None else family.open(None, common, sent.theta.shape[-1])
        theta, start = (family.whiten(t, units) for t in (sent.theta, central.center))
        penalty, everyone = self._next_penalty(state), bool(present.all())
        held, weight, within = self._counted(state, central.n_rows, self.share(sent.weights), penalty, present)
        scale = bounded_scale(step_scale)
        scale = scale if everyone else np.where(along(present, scale), scale, 1.0)
        rows, known = held / held.shape[-1], (state.between, state.trust)
        found = self._centered(state, known, theta, weight / scale, within * scale, rows, start, present)
        if not family.unit_errors and isinstance(self.rule, Redescending) and state.lacking is None:
            # After some rounds doubts only grow, or two centers would take turns for ever.
            least = state.doubt if state.played >= LIKENESS_ROUNDS else None
            found, doubt = away_from_colluders(found, theta, weight / scale, within * scale, held, start, least)
            state = state._replace(doubt=doubt)
        shrunk, center = (family.unwhiten(t, units) for t in (found.shrunk, found.center))
        if units is not None:  # into the units of the noise and back is not exact: what is on the center stays on it
            shrunk = np.where(on_center(found.shrunk, found.center), center, shrunk)

        def of_noise(away: Array, share: Array, start: Array) -> Centered:
            penalty = full_penalty(state.pull.noise_penalty, away.shape[-1], len(away))
            held, weight, within = self._counted(state, central.n_rows, share, penalty, present)
            return self._centered(state, state.of_noise, away, weight, within, held / held.shape[-1], start, present)

        # About the common noise of the starts, in every round: were the chart to move with the center, the center of
        # two very different sites would wander.
        noise, common, noises = self.shrink_noise(family, central, sent, state.reference, of_noise)
        weights, common_weights = sent.weights, central.weights
        if state.lacking is not None:
            weights = without_lacking(weights, state.lacking)
        if common_weights is not None and np.asarray(state.pull.weights_penalty).any():
            weights, common_weights = pool_weights(
                self.rule, weights, common_weights, state.of_weights, central.n_rows, present
            )
        params = Params(weights, shrunk, noise)
        if not everyone:
            params = keep_absent(params, following(central, center, common), present)
        if noise is not None and common is not None:
            params = reseeded(params, center, common, central.n_rows)
        place, path = Place(params, center, common), state.path
        # Where rounds differ by who is asked and by which rows, steps say little of what is to come.
        alike = self.sites == 1.0 and self._batch(central) == 1.0 and self._is_within(state.played + 1, FAST_ROUNDS)
        if path is not None and alike:
            place, path = extrapolate(central.center, place, path)
        state = state._replace(played=state.played + 1, penalty=penalty, path=path)
        if found.between is not None:
            of_both = None if noises is None or noises.between is None else (noises.between, noises.trust)
            state = state._replace(between=found.between, trust=found.trust, of_noise=of_both)
        after = Central(place.params, place.center, central.n_rows, place.noise, state, common_weights)
        pulled = along(state.pull.pulled, weights)
        if found.between is None:
            step = 1.0 if self.step_weights == "initial" else self.step_size
            say = weight * found.trust * pulled
            return after, Influence(say, within / step, penalty, found.iterations, found.gap)
        away = np.where(on_center(found.shrunk, found.center)[..., 0], np.inf, row_norm(theta - found.shrunk))
        say, moved = rows * along(present, weights) * pulled, np.where(within > 0, away, 0.0)
        between = None if noises is None else noises.between
        return after, Influence(say, moved, penalty, found.iterations, found.gap, found.between, between)

    def _counted(
        self, state: State, n_rows: Array, share: Array, penalty: Array, present: Array
    ) -> tuple[Array, Array, Array]:
        """(K, ..., R) the rows that estimates rest on, what they count for at the center, and their thresholds."""
        held, weight = along(n_rows, share) * share, along(state.counted * present, share) * share
        if state.lacking is not None and share.shape[-1] == state.lacking.shape[-1]:
            weight = np.where(state.lacking, 0.0, weight)
        # A site that is fitted alone is not pulled, and its threshold of 0 gives it no say either.
        return held, weight, of_sites(penalty, state.pull.pulled)[..., None] / np.sqrt(held)

    def _centered(
        self, state: State, known: tuple[Array | None, Array | None] | None, theta: Array, weight: Array,
        threshold: Array, rows: Array, start: Array, present: Array,
    ) -> Centered:  # fmt: skip
        """The center rule; where it says how strongly to pull, after some rounds as strongly as is ``known``.

        Near the border of sites that do not differ, what one round finds may be undone by what the next one does.
        """
        rule = self.center_rule if state.pull.estimated else self.rule
        settled = state.pull.estimated and state.played >= LIKENESS_ROUNDS

        def of_some(sites: Any, components: Any, *estimates: Array) -> Centered:
            if settled and known is not None and isinstance(rule, EmpiricalBayes):
                between, trusted = known
                assert between is not None
                assert trusted is not None
                return rule.given(between[..., components], trusted[sites][..., components], *estimates)
            return rule(*estimates)

        return by_holders(state.lacking, of_some, theta, weight, threshold, rows, start, present)

    def shrink_noise(
        self, family: Family, central: Central, sent: Params, chart: Array | None,
        centered: Callable[[Array, Array, Array], Centered],
    ) -> tuple[Array | None, Array | None, Centered | None]:  # fmt: skip
        """The sites' noises shrunk to a common one, that, and what was found.

        It is found by ``centered`` from coordinates about a chart, the share of the rows that these rest on, and the
        last common ones.
        """
        if sent.noise is None or central.noise is None or chart is None:
            return None, None, None
        width = sent.theta.shape[-1]
        away, start = (family.relative_noise(noise, chart, width) for noise in (sent.noise, central.noise))
        # A noise that all components share rests on all rows of a site.
        share = self.share(sent.weights) if away.shape[-2] > 1 else np.ones(away.shape[:-1])
        found = centered(away, share, start)
        shrunk, center = (family.absolute_noise(a, chart, width) for a in (found.shrunk, found.center))
        return np.where(on_center(found.shrunk, found.center), center, shrunk), center, found

    @property
    def center_rule(self) -> CenterRule:
        """The center rule, whether it was given as an object or by name."""
        rule: CenterRule = CENTER_RULES[self.center]() if isinstance(self.center, str) else self.center
        return rule

    @property
    def rule(self) -> CenterRule:
        """The center rule where thresholds are given."""
        return Redescending() if self.center_rule.estimates else self.center_rule

    @property
    def picks_columns(self) -> bool:
        """Whether the center rule wants components to differ in few columns."""
        return self.center_rule.picks_columns

    def estimates(self, family: Family) -> bool:
        """Whether the center rule finds how strongly to pull: where estimates have errors that rows tell of."""
        return self.center_rule.estimates and family.unit_errors
