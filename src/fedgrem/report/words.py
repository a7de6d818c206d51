"""What a fit found, in sentences: the same on the screen, in a notebook and on the page. Plain text, no markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fedgrem.fit.private import LOST_IN_NOISE
from fedgrem.fit.verdicts import FEWEST_SITES, NOT_JUDGED
from fedgrem.report.gain import Gains, word_of
from fedgrem.report.text import capital, count, listed, number, signed

if TYPE_CHECKING:
    from fedgrem.report.summary import SiteSummary, Summary

AGREEMENT = {
    "at the center": (
        "is at the common center in every component: its rows gave no reason to differ",
        "are at the common center in every component: their rows gave no reason to differ",
    ),
    "similar": (
        "is close to the center, but not on it in every component: its rows gave some reason to differ",
        "are close to the center, but not on it in every component: their rows gave some reason to differ",
    ),
    "own answer": (
        "has an answer of its own: its rows clearly speak for it",
        "have answers of their own: their rows clearly speak for them",
    ),
}
"""Verdict -> what one site does, and what several do."""
KINDS = {"at the center": "yes", "gains": "yes", "suspect": "no", "loses": "no"}
"""Word -> kind of mark; all others are open."""


class Line(NamedTuple):
    """A marked sentence."""

    kind: str
    """Of the mark: yes, no or open."""
    word: str
    before: str
    strong: str = ""
    after: str = ""

    def __str__(self) -> str:
        """The sentence, without the mark."""
        return self.before + self.strong + self.after


def headline(summary: Summary) -> str:
    """What the page is about."""
    return f"{capital(summary.kind)} over {count(len(summary.sites), 'site')}"


def agreement(summary: Summary) -> list[Line]:
    """How many sites agree with the center, and how far."""
    if len(summary.sites) == 1:
        return [Line("open", "one site", "One site: there is nothing to compare it with.")]
    if summary.sharing == "shared":
        own = "a fit of its own" if summary.n_local_only == 1 else "fits of their own"
        but = f" but {summary.n_local_only:,}, with {own}," if summary.n_local_only else ""
        text = f"All sites{but} share the components, by construction; only their weights differ."
        return [Line("open", "shared", text)]
    if summary.sharing == "alone":
        text = "Every site has an answer of its own; the center is only the middle of the sites."
        return [Line("open", "own", text)]
    counted = {word: sum(site.verdict == word for site in summary.sites) for word in AGREEMENT}
    lines = [
        Line(KINDS.get(word, "open"), word, "", _of_all(n, summary), f" {AGREEMENT[word][n > 1]}.")
        for word, n in counted.items()
        if n
    ]
    return lines + _too_small(summary) + _alike(summary) + _too_many(summary)


def _too_small(summary: Summary) -> list[Line]:
    """Which sites have too few rows to be judged; nothing if all have enough."""
    small = [site for site in summary.sites if site.evidence and site.n_rows < site.evidence["judged_from"]]
    if not small:
        return []
    needed = count(int(max(site.evidence["judged_from"] for site in small)), "row")
    names = listed([f"{site.name} ({number(site.n_rows)})" for site in sorted(small, key=lambda s: s.n_rows)], 5)
    text = f" {'is' if len(small) == 1 else 'are'} not judged, with fewer than the {needed} that it takes: {names}."
    return [Line("open", "not judged", "", _of_all(len(small), summary), text)]


def _alike(summary: Summary) -> list[Line]:
    """Which sites say the same, and are not suspect for anything else; one line for all who do."""
    lines, told = [], set[str]()
    for site in summary.sites:
        if site.verdict == NOT_JUDGED and site.same_as and site.name not in told:
            told.update((site.name, *site.same_as))
            names = _all_of([site.name, *site.same_as])
            text = (
                f" say nearly the same, closer than rows of their own would let them: {names}. At most one of them can "
                "have found it in its rows, and nobody can tell which: they are not judged."
            )
            lines.append(Line("no", "not judged", "", _of_all(1 + len(site.same_as), summary), text))
    return lines


def _too_many(summary: Summary) -> list[Line]:
    """Whether so many sites are unlike the others that none of them can be called suspect for that."""
    odd = [site for site in summary.sites if site.verdict == NOT_JUDGED and site.evidence and not site.same_as]
    odd = [s for s in odd if s.n_rows >= s.evidence["judged_from"] and s.evidence["p_value"] <= summary.false_alarm]
    if not odd:
        return []
    text = (
        " are unlike the others, by more than chance: as these are so many, it is not they who are odd, and they are "
        "not judged. Perhaps the center is not where most sites are, or the sites are of several kinds."
    )
    return [Line("open", "not judged", "", _of_all(len(odd), summary), text)]


def suspicion(summary: Summary) -> Line:
    """Who is suspect, and why."""
    if len(summary.sites) < FEWEST_SITES:
        return Line("open", "suspect", f"With fewer than {FEWEST_SITES} sites nobody can say which one is suspect.")
    if all(site.verdict == NOT_JUDGED for site in summary.sites):
        reason = "this fit has no center to hold them against" if not _too_small(summary) else "all have too few rows"
        return Line("open", "not judged", f"The sites were not judged: {reason}.")
    suspect = [site for site in summary.oddest_first if site.suspect]
    if not any(site.evidence for site in summary.sites):
        return Line("open", "not judged", "The center saw sums over sites only: nobody can say which one is suspect.")
    if not suspect:
        none = "none is farther out, or fits its own rows worse or better, than its size and the other sites explain"
        return Line("yes", "none suspect", "", "No site", f" is suspect: {none}.")
    names = listed([f"{site.name} ({why(site)})" for site in suspect], 5)
    text = (
        f" {'is' if len(suspect) == 1 else 'are'} suspect: {names}. Of honest sites about {summary.false_alarm:.0%} "
        "are called so. Look at the rows there first: units, coding, or another kind of case."
    )
    return Line("no", "suspect", "", _of_all(len(suspect), summary), text)


def why(site: SiteSummary) -> str:
    """What speaks most against a suspect site, in a few words.

    Examples
    --------
    >>> from fedgrem.report.summary import SiteSummary
    >>> told = {"p_distance": 1e-4, "p_fit": 0.2, "p_value": 2e-4, "distance": 6.0, "expected": 1.0, "fit": -1.0}
    >>> why(SiteSummary("west", 150.0, [1.0], [5.0], 0, 5.0, "suspect", told, True))
    '6.00 from the center, where 1.00 would be usual'
    """
    found = site.evidence
    if site.apart_with:
        same = ", and say nearly the same" if set(site.same_as) == set(site.apart_with) else ""
        some = [*site.apart_with[:3], *([f"{len(site.apart_with) - 3:,} more"] if len(site.apart_with) > 3 else [])]
        return f"stands apart from the others together with {_all_of(some)}{same}"
    if found["p_value"] == 0.0 and found["p_distance"] > 0.0 and found["p_fit"] != 0.0:
        return "what it reported cannot all be true"
    if not found["p_distance"] > found["p_fit"]:  # which is no number where fits are not compared
        return f"{number(found['distance'])} from the center, where {number(found['expected'])} would be usual"
    return f"its rows fit {'worse' if found['fit'] < 0 else 'better'} than those of other sites"


def vanishing(summary: Summary, most: int) -> str:
    """Which sites hold next to no rows of which components, and what stands there then; empty if none do.

    Parameters
    ----------
    summary : of the model.
    most : how many sites to name in a sentence; the others are counted.
    """
    sentences = []
    for at_center, stands in ((True, "is the center's"), (False, "rests on next to nothing")):
        told: list[str] = []
        for site in summary.sites:
            gone = [str(r) for r in site.vanished if (site.distance[r] == 0.0) == at_center]
            if gone:
                which = f"component{'' if len(gone) == 1 else 's'} {_all_of(gone)}"
                told.append(f"{site.name} {'of' if told else 'has next to no rows of'} {which}")
        if told:
            more = [f"and {count(len(told) - most, 'more site')} of some"] if len(told) > most else []
            sentences.append(f"{', '.join(told[:most] + more)}; what stands there {stands}.")
    return " ".join(sentences)


def those_of_some(summary: Summary, most: int) -> str:
    """Which components only some sites have, and who; empty where all sites have all.

    Parameters
    ----------
    summary : of the model.
    most : how many sites to name for a component; the others are counted.
    """
    told = []
    for r in range(summary.n_components):
        has = [site.name for site in summary.sites if r not in site.lacking]
        if len(has) == len(summary.sites):
            continue
        more = [count(len(has) - most, "more site")] if len(has) > most else []
        who = _all_of(has[:most] + more)
        own = any(r in site.own for site in summary.sites)
        few = f"{who}'s own, and has no center" if own and len(has) == 1 else f"that of {who} alone"
        told.append(f"Component {r} is {few}.")
    return " ".join(told)


def _all_of(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def settling(summary: Summary, *, told_to: bool) -> Line:
    """Whether the answer stopped moving; ``told_to``: the rounds were given, and nothing was to stop before."""
    moving = listed([site.name for site in summary.sites if not site.settled], 5)
    rounds = count(summary.n_rounds, "round")
    if summary.converged:
        also = f" Still moving a little: {moving}." if moving else ""
        return Line("yes", "settled", "The answer stopped moving after ", rounds, f".{also}")
    if summary.private:
        return Line("no", "lost in noise", f"{capital(LOST_IN_NOISE)}.")
    if told_to:
        return Line("open", "played", f"The fit played the {rounds} it was told to.")
    also = f"Still moving: {moving}. Allow it more rounds before relying on it."
    return Line("no", "not settled", f"The fit had not settled after {rounds}. {also}")


def gain_line(summary: Summary, gains: Gains) -> Line:
    """Whether working together paid."""
    ordinary = {site.name for site in summary.sites if not site.suspect}
    gain, error = gains.over(ordinary)
    word, words = word_of(gain, error), [site.word for site in gains.sites]
    said = {"gains": "better", "loses": "worse"}.get(word, "not clearly better or worse")
    losers = [site.name for site in gains.sites if site.word == "loses"]
    lost = f"{len(losers):,} clearly lost ({listed(losers, 5)})" if losers else "none clearly lost"
    whose = "sites that are not suspect" if len(ordinary) < len(summary.sites) else "all sites"
    after = (
        f" than fitting alone: {signed(gain, 3)} ± {error:.3f} in log-likelihood per row, over {whose}. "
        f"{words.count('gains'):,} of {count(len(words), 'site')} clearly gained, {lost}."
    )
    return Line(KINDS.get(word, "open"), word, "On rows that were held back, working together was ", said, after)


def _of_all(n: int, summary: Summary) -> str:
    return f"{n:,} of {count(len(summary.sites), 'site')}"
