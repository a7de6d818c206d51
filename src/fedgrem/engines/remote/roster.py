"""Who takes part: the sites, what each said of itself, its strikes, and everything that happened to it."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedgrem.engines.remote.declaration import NamedCensus
from fedgrem.engines.remote.sums import NamedKeys
from fedgrem.errors import PausedError


class Rules(NamedTuple):
    """How much the center puts up with."""

    min_sites: int = 2
    """With fewer answers than this, the run pauses."""
    deadline: float = 120.0
    """Seconds that a site has for one exchange; a worker that is killed meanwhile may restart and answer."""
    patience: float = 60.0
    """Seconds for which a round with too few answers is tried again before the run pauses."""
    strikes: int = 3
    """Bad answers after which a site is out of the run."""


@dataclass
class Roster:
    """The sites of a run, in order. All but the rules and the census, which has a record of its own, is journaled."""

    names: list[str]
    rules: Rules
    census: dict[str, NamedCensus | NamedKeys] = field(default_factory=dict)
    """What each said first."""
    strikes: dict[str, int] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    """Why a site is out of the run."""
    away: set[str] = field(default_factory=set)
    """Sites that missed the last deadline; they are asked again every round, but not waited for."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """What happened, in the order in which it did."""

    def as_plain(self) -> dict[str, Any]:
        """A copy in words, numbers, lists and dicts, for JSON."""
        plain = {"names": list(self.names), "strikes": dict(self.strikes), "out": dict(self.out)}
        return {**plain, "away": sorted(self.away), "events": list(self.events)}

    def restore(self, plain: dict[str, Any]) -> None:
        """Take over what the journal says."""
        self.names, self.strikes, self.out = list(plain["names"]), dict(plain["strikes"]), dict(plain["out"])
        self.away, self.events = set(plain["away"]), list(plain["events"])

    def note(self, site: str, what: str, reason: str, exchange: int) -> None:
        """Record an event."""
        self.events.append({"exchange": exchange, "site": site, "what": what, "reason": reason})

    def strike(self, site: str, reason: str, exchange: int) -> None:
        """Record a bad answer; the last of several puts the site out of the run."""
        self.strikes[site] = self.strikes.get(site, 0) + 1
        self.note(site, "left out of this round", reason, exchange)
        if self.strikes[site] >= self.rules.strikes:
            self.expel(site, f"{self.strikes[site]} bad answers, the last: {reason}", exchange)

    def expel(self, site: str, reason: str, exchange: int) -> None:
        """Put a site out of the run."""
        self.out[site] = reason
        self.note(site, "out of the run", reason, exchange)

    def drop(self, site: str, reason: str, exchange: int) -> None:
        """Go on as if the site had never been there: it has given no start to go on with."""
        self.names.remove(site)
        self.expel(site, reason, exchange)

    @property
    def active(self) -> list[str]:
        """Sites that are asked."""
        return [name for name in self.names if name not in self.out]

    def check_quorum(self, n_answers: int) -> None:
        """Pause where too few sites answered."""
        if n_answers < self.rules.min_sites:
            why = [f"{site}: {self._last_reason(site)}" for site in sorted({*self.out, *self.away, *self.strikes})]
            raise PausedError(
                f"paused: {n_answers} of {len({*self.names, *self.out})} site(s) answered, and min_sites is "
                f"{self.rules.min_sites} ({'; '.join(why)}); see to the sites, then go on with `fedgrem sites resume`."
            )

    def _last_reason(self, site: str) -> str:
        return next((str(event["reason"]) for event in reversed(self.events) if event["site"] == site), "no reason")
