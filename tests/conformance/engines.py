"""Two engines that must give the in-process answer: one site at a time, and over a wire that shuffles."""

import random

import numpy as np

from fedgrem.data.federation import stack_sites
from fedgrem.data.units import Census, take_census
from fedgrem.engines.inprocess import InProcess
from fedgrem.fit.conversation import Replies
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec, StartPlan
from fedgrem.fit.tasks import TASKS
from fedgrem.types import Params, map_arrays, named_arrays


def spec_for(case, algorithm, start=None, *, rounds=6, tol=0.0, penalty=2.0, **options):
    """A fit of two components from a given start ``(weights, theta)``, or from one that is searched for."""
    plan = StartPlan(n_init=2, short=5, long=10, joint_starts=2) if start is None else StartPlan(alignment="none")
    given = None if start is None else Params(*map(np.asarray, start))
    values = {"fallback": False, "look": False, "standard_errors": False, "start": plan, "given": given}
    if "plan" in options:
        values["start"] = options.pop("plan")
    return FitSpec(case.family, algorithm, 2, penalty, max_rounds=rounds, tol=tol, **(values | options))


def fit(case, data, algorithm, start=None, *, engine=InProcess, on_progress=None, **options):
    """Fit on an engine, in process unless another is named."""
    spec = spec_for(case, algorithm, start, **options)
    return run(spec, engine(data, spec), on_progress)


def assert_same_fit(actual, expected, *, rtol=1e-10, atol=1e-10):
    """Everything that a result holds, to a tolerance; 0 is to the bit."""
    assert actual.site_names == expected.site_names
    assert (actual.n_rounds, actual.converged, actual.unsettled) == (
        expected.n_rounds, expected.converged, expected.unsettled
    )  # fmt: skip
    arrays = [(name, leaf) for name, leaf in expected._asdict().items() if isinstance(leaf, np.ndarray)]
    assert {name for name, _ in arrays} >= {"weights", "theta", "center", "distance", "n_rows", "start_choice"}
    for name, leaf in arrays:
        np.testing.assert_allclose(getattr(actual, name), leaf, rtol=rtol, atol=atol, err_msg=name)
    for field in ("history", "path", "look"):
        for name, leaf in (getattr(expected, field) or {}).items():
            found = getattr(actual, field)[name]
            np.testing.assert_allclose(found, leaf, rtol=100 * rtol, atol=100 * atol, err_msg=f"{field} {name}")


class SiteBySite:
    """Runs every task on a stack of one site, as a site over a network does."""

    def __init__(self, federation, spec):
        self._federation, self._spec, self._agreed = federation, spec, None
        self.payloads = []
        """(task, shapes sent to a site, shapes it sent back), of every exchange with the first site."""

    @property
    def site_names(self):
        return self._federation.names

    def ask(self, ask):
        n_sites = len(self.site_names)
        present = np.ones(n_sites, dtype=bool) if ask.to is None else ask.to
        if ask.task == "census":
            found = [take_census(site) for site in self._federation.sites]
            return Replies(present, Census(*map(np.stack, zip(*found, strict=True))))
        stacks = self._stacks(ask.agreed)
        asked = np.flatnonzero(present)
        messages = [map_arrays(lambda leaf, k=k: leaf[k : k + 1], ask.mail) for k in asked]
        replies = self._exchange(ask.task, [stacks[k] for k in asked], messages)
        self.payloads.append((ask.task, _shapes(messages[0]), _shapes(replies[0])))

        def join(*leaves):
            whole = np.full((n_sites, *leaves[0].shape[1:]), np.nan)
            whole[asked] = np.concatenate(leaves)
            return whole if len(asked) < n_sites else np.concatenate(leaves)

        return Replies(present, map_arrays(join, *replies))

    def _stacks(self, agreed):
        if self._agreed is not agreed:
            scaled = self._spec.units.apply(self._federation, agreed.units)
            self._agreed, self._kept = agreed, [stack_sites([site], gaps=agreed.gaps) for site in scaled.sites]
        return self._kept

    def _exchange(self, task, stacks, messages):
        return [self._answer(task, stack, message) for stack, message in zip(stacks, messages, strict=True)]

    def _answer(self, task, stack, message):
        with np.errstate(all="ignore"):
            return TASKS[task](self._spec, stack, message)


class FakeWire(SiteBySite):
    """Sends bytes, and gets the replies back in any order."""

    def _exchange(self, task, stacks, messages):
        arrived = []
        for stack, message in zip(stacks, messages, strict=True):
            reply = self._answer(task, stack, decode(encode(message), like=message))
            arrived.append((stack.names[0], encode(reply), reply))
        random.Random(len(self.payloads)).shuffle(arrived)
        by_name = {name: decode(wire, like=reply) for name, wire, reply in arrived}
        return [by_name[stack.names[0]] for stack in stacks]


def _shapes(message):
    return {name: np.shape(leaf) for name, leaf in named_arrays(message)}


def encode(message):
    """The arrays of a message as bytes; what they are called is known at both ends."""
    return [(str(leaf.dtype), leaf.shape, leaf.tobytes()) for _, leaf in named_arrays(message)]


def decode(wire, like):
    leaves = (np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in wire)
    return map_arrays(lambda leaf: next(leaves), like)
