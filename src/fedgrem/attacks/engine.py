"""The wrapper: an engine whose bad sites lie, and a fit that is played as a center behind a network would play it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedgrem.attacks.base import MessageAttack, Scene, among, find
from fedgrem.data.federation import Federation
from fedgrem.engines.inprocess import InProcess
from fedgrem.engines.remote.validate import check_reply
from fedgrem.engines.remote.wire import encode
from fedgrem.errors import FedGrEMError, InputError, MessageError
from fedgrem.fit.conversation import Ask, Engine, Progress, Replies
from fedgrem.fit.fit import run
from fedgrem.fit.spec import FitSpec
from fedgrem.types import Array, FitResult, map_arrays


class RefusedError(FedGrEMError):
    """A reply that the fit cannot do without was refused."""

    def __init__(self, site: str, why: str) -> None:
        super().__init__(f"{why} Site {site!r} takes no part.")
        self.site = site


class Attacked:
    """An engine around another one: the honest answers come back, and bad sites rewrite their part of them.

    Parameters
    ----------
    engine : who carries the messages; attack : what the bad sites do; spec : of the fit.
    bad : names of the bad sites. They may collude, and know the spec and all honest replies.
    checked : whether every lie passes the checks of a center that receives it over a network. What is refused counts as
        absent where the fit can do without it, and raises :class:`RefusedError` where not.
    """

    def __init__(
        self,
        engine: Engine,
        attack: MessageAttack,
        bad: Sequence[str],
        *,
        spec: FitSpec,
        seed: int = 0,
        checked: bool = True,
    ) -> None:
        unknown = [name for name in bad if name not in engine.site_names]
        if unknown:
            raise InputError(f"{', '.join(unknown)} is no site of this engine; bad sites are some of its own.")
        self._engine, self._attack, self._spec, self._seed, self._checked = engine, attack, spec, seed, checked
        self._bad = np.array([name in bad for name in engine.site_names])
        self._n_rows = np.ones(len(self._bad))
        self._sizes: dict[str, float] = {}
        self._number = 0
        self.refused: dict[str, str] = {}
        """What was refused last of each site that was."""

    @property
    def site_names(self) -> tuple[str, ...]:
        """In the order of every stacked array."""
        return self._engine.site_names

    def ask(self, ask: Ask) -> Replies:
        """Let everyone answer honestly, then let the bad sites lie."""
        honest = self._engine.ask(ask)
        # Of sites that are not asked this time, what they said last.
        told = np.array(find(honest.mail, "n_rows"), dtype=float)
        self._n_rows = np.where(honest.present, told, self._n_rows)
        scene = Scene(ask, self._spec, self.site_names, self._bad, self._n_rows, self._number, self._seed)
        self._number += 1
        with np.errstate(all="ignore"):
            replies = among(honest, self._attack(honest, scene), self._bad)
        return self._judged(ask, honest, replies) if self._checked else replies

    def _judged(self, ask: Ask, honest: Replies, replies: Replies) -> Replies:
        """The replies that may be used; the others are absent, and their rows NaN."""
        present = replies.present.copy()
        for k in np.flatnonzero(self._bad & replies.present).tolist():
            name = self.site_names[k]
            lie, true = (map_arrays(lambda leaf, k=k: np.asarray(leaf[k]), m.mail) for m in (replies, honest))
            why = why_refused(name, ask.task, lie, true, self._sizes.get(name), gaps=self._spec.missing)
            if not why:
                self._sizes.setdefault(name, float(find(lie, "n_rows")))
                continue
            self.refused[name] = why
            if not ask.optional:
                raise RefusedError(name, why)
            present[k] = False
        if present.all():
            return replies

        def blank(leaf: Array) -> Array:
            found = leaf.astype(float) if leaf.dtype.kind != "f" else leaf.copy()
            found[~present] = np.nan
            return found

        return Replies(present, map_arrays(blank, replies.mail))


def why_refused(name: str, task: str, lie: Any, true: Any, n_rows: float | None, *, gaps: bool) -> str:
    """What a center behind a network says of a reply that it does not take; empty if it takes it.

    Parameters
    ----------
    lie, true : what the site sends, and an honest reply to the same question; n_rows : that it told before.
    """
    told = map_arrays(lambda leaf, like: leaf.astype(like.dtype), lie, true)
    try:
        check_reply(name, task, encode(told), true, exchange=(0, 0), n_rows=n_rows, gaps=gaps)
    except MessageError as error:
        return str(error)
    return ""


def fit_attacked(
    spec: FitSpec,
    federation: Federation,
    attack: MessageAttack,
    bad: Sequence[str],
    *,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> FitResult:
    """A fit in one process whose bad sites lie, with the checks of a center behind a network.

    A site whose reply is refused before round 1 is left out, and the fit begins again without it, as it would over a
    network: the result then has fewer sites.
    """
    left: Any = federation
    while True:
        wrapped = Attacked(InProcess(left, spec), attack, [n for n in bad if n in left.names], spec=spec, seed=seed)
        try:
            return run(spec, wrapped, on_progress)
        except RefusedError as error:
            left = Federation(tuple(site for site in left.sites if site.name != error.site), left.columns)
