"""Every attack of the library, by name: one row each, which runs through the conformance tests and the benchmarks."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedgrem.attacks import claims, edge, estimates, rows
from fedgrem.attacks.base import START_TASKS, Only, Together


class Entry(NamedTuple):
    """What is known of an attack."""

    attack: Any
    """A :class:`~fedgrem.attacks.rows.RowAttack` or a :class:`~fedgrem.attacks.base.MessageAttack`."""
    title: str
    reference: str
    what: str
    """What it does, in a sentence."""
    spares_mean: str = ""
    """Why it does not move a plain mean; empty where it does."""

    @property
    def on_rows(self) -> bool:
        """Whether it rewrites rows, and not messages."""
        return hasattr(rows, type(self.attack).__name__)


PAPER = "Tian, Weng and Feng (2024), appendix on simulations"
FOLK = "Lamport, Shostak and Pease (1982)"
LI = "Li, Xu, Chen, Giannakis and Ling (2019)"
BARUCH = "Baruch, Baruch and Goldberg (2019)"
XIE = "Xie, Koyejo and Gupta (2020)"
SHEJWALKAR = "Shejwalkar and Houmansadr (2021)"
KARIMIREDDY = "Karimireddy, He and Jaggi (2022)"
HUBER = "Huber (1964)"
OURS = "this package"

ATTACKS: Mapping[str, Entry] = {
    # -- on rows
    "far": Entry(rows.Far(), "far rows", PAPER, "All rows are far from everybody else's, in one direction."),
    "columns": Entry(rows.PermutedColumns(), "permuted columns", OURS,
        "Columns are mixed up, each site in its own way."),
    "clump": Entry(rows.Clump(), "clump", OURS, "All rows are nearly the same one."),
    "common-shift": Entry(rows.CommonShift(), "common small shift", OURS,
        "All rows are moved by one unit of the noise, alike at all bad sites."),
    "merged": Entry(rows.Merged(), "merged components", OURS,
        "Rows lose the two directions that tell components apart best."),
    "huge-cells": Entry(rows.HugeCells(), "huge cells", HUBER, "One cell in a hundred holds a million."),
    "part-far": Entry(rows.PartOfRows("far"), "a tenth of the rows far", HUBER, "A tenth of the rows is far away."),
    "part-clump": Entry(rows.PartOfRows("clump"), "a tenth of the rows in a clump", HUBER,
        "A tenth of the rows is one tight clump more."),
    "part-heavy": Entry(rows.PartOfRows("heavy"), "a tenth of the rows with heavy tails", HUBER,
        "A tenth of the rows has Student's tails."),
    # -- on parameters
    "sign-flip": Entry(estimates.SignFlip(), "sign flip", LI, "Sends the negative of its parameters."),
    "noise": Entry(estimates.Noise(), "noise", LI,
        "Adds ten honest standard deviations of noise, drawn anew every time."),
    "alie": Entry(estimates.ALIE(), "a little is enough", BARUCH, "Sends the honest mean less 1.5 honest deviations."),
    "ipm": Entry(estimates.IPM(), "inner product manipulation", XIE,
        "Sends the honest mean step backwards, and longer."),
    "min-max": Entry(estimates.MinMax(), "min-max", SHEJWALKAR,
        "Sends what is as far off as possible, but no farther from any honest site than two of these are apart."),
    "mimic": Entry(estimates.Mimic(), "mimic", KARIMIREDDY, "All bad sites repeat what the oddest honest site says.",
        "It repeats the noise of one honest site: the mean is a little noisier, and not biased."),
    "labels": Entry(estimates.PermutedLabels(), "permuted labels", OURS, "Components are relabelled in every message."),
    "collapse": Entry(estimates.Collapse(), "collapse", OURS, "Sends the mean of all components for each of them."),
    "shift": Entry(estimates.Shift(), "shift", OURS, "Sends the honest mean, moved by twice the usual distance."),
    "edge": Entry(edge.EdgeOfTrust(), "edge of trust", OURS,
        "Colluders stand just where the center rule in use still trusts them as much as the middle honest site."),
    "edge-scattered": Entry(edge.EdgeOfTrust(scatter=0.7), "edge of trust, scattered", OURS,
        "Colluders at the edge of trust who differ among themselves, nearly as much as honest sites do."),
    "sleeper": Entry(Only(edge.EdgeOfTrust(), ("step",)), "sleeper", OURS,
        "Colluders who are honest until the penalty is chosen, and then stand at the edge of trust."),
    "worst-shift": Entry(edge.WorstShift(), "worst shift", OURS,
        "Colluders stand where they move the center rule in use most."),
    "poisoned-starts": Entry(Only(estimates.PoisonedComponents(), START_TASKS), "poisoned starts", OURS,
        "Sends made-up components before round 1, and is honest afterwards.",
        "Starts are medians of the sites, and the mean of later rounds forgets them."),
    "restless": Entry(Only(estimates.Restless(), ("step",)), "restless", OURS,
        "Moves every component by 0.02 in every round, for ever.",
        "Its moves have no direction in common, and average out; what it costs is rounds."),
    "stale": Entry(estimates.Stale(), "stale", OURS,
        "Sends back what it was sent.", "It pulls nowhere; the mean only does without its rows."),
    "huge": Entry(estimates.Constant(1e200), "huge values", FOLK, "Sends 1e200 for every component parameter.",
        "No honest site can be there: it is refused by name, and takes no part."),
    "huge-start": Entry(Only(estimates.OneCell(1e200), START_TASKS), "one huge value", FOLK,
        "A single 1e200 in what it sends before round 1.",
        "No honest site can be there: it is refused by name, and takes no part."),
    "large": Entry(estimates.Constant(1e8), "large values", FOLK, "Sends 1e8 for every component parameter."),
    "nan": Entry(estimates.Constant(float("nan")), "not a number", FOLK, "Sends NaN for every component parameter.",
        "Every engine that checks replies refuses it by name, and the site takes no part."),
    # -- on everything else
    "rows-x10": Entry(claims.FalseSize(10.0), "ten times the rows", OURS, "Claims ten times the rows it has."),
    "rows-1e6": Entry(claims.FalseSize(rows=1e6), "a million rows", OURS, "Claims a million rows."),
    "piled-weight": Entry(estimates.PiledWeight(), "piled weight", OURS, "Claims all rows for one component.",
        "Its parameters are honest: they count for too much in one place and too little in the others."),
    "step-scale": Entry(claims.StepScale(), "tiny step scale", OURS,
        "Reports that its steps are tiny, to be weighed more."),
    "gains-strong": Entry(claims.LyingGains("strong"), "gains of sharing", OURS,
        "Says that the strongest pull serves best.",
        "A plain mean has no penalty to choose; what is attacked is that choice."),
    "gains-none": Entry(claims.LyingGains("none"), "gains of being alone", OURS, "Says that fitting alone serves best.",
        "A plain mean has no penalty to choose; what is attacked is that choice."),
    "likelihoods": Entry(claims.LyingLikelihoods(), "lying likelihoods", OURS,
        "Calls the worst start the best, and all fits too good.",
        "A mean does not ask for them; what is attacked are starts, verdicts and selection."),
    "information": Entry(claims.LyingInformation(), "lying information", OURS,
        "Claims to know its parameters a million times too well.",
        "A mean does not ask for it; what is attacked is standard errors."),
    "census": Entry(claims.LyingCensus(), "lying census", OURS, "Reports columns that are a million times too wide.",
        "Units are medians of the sites, and a fit in the units of the rows asks for none."),
    "silent": Entry(claims.Silent(), "silent", FOLK, "Answers before round 1, and never again.",
        "The mean only does without its rows; what is attacked is that a fit ends."),
    "every-other": Entry(claims.Silent(2), "silent every other time", FOLK, "Answers every other message.",
        "The mean only does without its rows half of the time; what is attacked is that a fit ends."),
    "fuzz": Entry(claims.Fuzz(), "fuzz", FOLK,
        "Replaces one number in twenty, of any kind, by one of the worst there are."),
    # -- several at once
    "edge-loud": Entry(Together(edge.EdgeOfTrust(), claims.FalseSize(10.0), estimates.PiledWeight()),
        "edge of trust, loud", OURS,
        "Colluders at the edge of trust who claim ten times the rows, all of one component."),
    "edge-gains": Entry(Together(edge.EdgeOfTrust(), claims.LyingGains("strong")), "edge of trust, pulling", OURS,
        "Colluders at the edge of trust who say that the strongest pull serves best."),
    "alie-loud": Entry(Together(estimates.ALIE(), claims.FalseSize(10.0), claims.LyingGains("strong")),
        "a little is enough, loud", BARUCH, "As above, with ten times the rows, and gains for the strongest pull."),
    "chaos": Entry(
        Together(estimates.PermutedLabels(), estimates.Noise(), claims.FalseSize(rows=1e6), claims.LyingLikelihoods()),
        "chaos", FOLK, "Permuted labels, noise, a million rows and lying likelihoods."),
}  # fmt: skip
"""name -> entry."""
