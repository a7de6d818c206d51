"""What a study shows, in sentences: each is computed from the rows, and none is written in advance."""

from collections import Counter
from math import isfinite

import numpy as np

from fedgrem.report.names import name_of
from fedgrem.studies.pages.rates import rate_verdicts
from fedgrem.studies.pages.real_words import real_verdicts
from fedgrem.studies.pages.stats import Row, Verdict, mean_of, pick
from fedgrem.studies.pages.tables import eta_sizes, has_both_thresholds, relative_range, reported
from fedgrem.studies.specs import REAL, Study
from fedgrem.types import Array

CLOSE = 0.03
"""Within this share of the best counts as best."""
ERRORS = ("theta_error", "weight_error", "error")
"""What a row may say of a fit: two errors of a simulation, or mis-clustering on real data."""
POOLED = ("pooled-em", "pooled-grem")


def verdicts(study: Study, rows: list[Row]) -> list[Verdict]:
    """The paper's claims about this study, one by one."""
    if study.name in REAL:
        return [*real_verdicts(study, rows), *_failures(rows)]
    told = {"gmm": _comparison, "mor": _comparison, "eta": _step_size, "theory": rate_verdicts, "sizes": _sizes}
    return [*told[study.name](study, rows), *_failures(rows)]


def _failures(rows: list[Row]) -> list[Verdict]:
    """Fits without a finite answer: said aloud, because means leave them out."""
    lost = [row for row in rows if not all(isfinite(row[name]) for name in ERRORS if name in row)]
    if not lost:
        return []
    counts = Counter(name_of(row["method"]) for row in lost)
    listed = ", ".join(f"{name} {n}" for name, n in counts.items())
    finding = f"{len(lost)} of {len(rows)} did not ({listed}); means and figures are over the others."
    return [Verdict("Every fit ends in finite numbers.", False, finding)]


def _means(study: Study, rows: list[Row], measure: str, method: str) -> Array:
    return np.array([mean_of(rows, measure, setting=s.name, method=method) for s in study.settings])


def _comparison(study: Study, rows: list[Row]) -> list[Verdict]:
    names, h = [m.name for m in study.methods], np.array([s.x for s in study.settings])
    theta = {name: _means(study, rows, "theta_error", name) for name in names}
    found = []
    if "fedgrem" in names and len(names) > 1:
        found.append(_best(theta, h))
    if "local-em" in names:
        found += [_crossing(theta, h, name) for name in ("fedem", "tgmm") if name in names]
        if "fedgmm" in names:
            found.append(_helps_at_zero(theta, h, "fedgmm"))
        if "fedgrem" in names:
            ratio = theta["fedgrem"][-1] / theta["local-em"][-1]
            claim = "FedGrEM is no worse than EM at each site alone even at the largest h (the paper: comparable)."
            finding = f"at h = {h[-1]:g} its θ error is {ratio:.2f} times that of Local-EM."
            found.append(Verdict(claim, bool(ratio <= 1.1), finding))
    found += _weights(study, rows, names)
    found += _lifted(study, theta, h)
    return found


def _best(theta: dict[str, Array], h: Array) -> Verdict:
    best = np.nanmin(list(theta.values()), axis=0)
    behind = theta["fedgrem"] / best - 1.0
    claim = f"FedGrEM has the least θ error of all methods, or is within {CLOSE:.0%} of it, at every h."
    late = np.flatnonzero(behind > CLOSE)
    if not len(late):
        return Verdict(claim, True, f"at worst it is {max(behind.max(), 0.0):.1%} behind the best of the others.")
    winners = [min(theta, key=lambda name, i=i: theta[name][i]) for i in late]  # type: ignore[misc]
    listed = ", ".join(
        f"h = {h[i]:g} ({name_of(winner)} {theta[winner][i]:.2f}, FedGrEM {theta['fedgrem'][i]:.2f})"
        for i, winner in zip(late, winners, strict=True)
    )
    return Verdict(claim, False, f"it is farther behind at {listed}.")


def _crossing(theta: dict[str, Array], h: Array, name: str) -> Verdict:
    above = theta[name] > theta["local-em"]
    claim = f"{name_of(name)} beats EM at each site alone for small h and becomes inferior to it as h grows."
    if above.all():
        return Verdict(claim, False, "its θ error is above that of Local-EM at every h here.")
    if not above.any():
        return Verdict(claim, False, f"its θ error stays below that of Local-EM up to h = {h[-1]:g}.")
    first = h[np.flatnonzero(above)[0]]
    steady = bool(above[np.flatnonzero(above)[0] :].all())
    finding = (
        f"its θ error is above that of Local-EM from h = {first:g} on" if steady else f"it crosses at h = {first:g}"
    )
    return Verdict(claim, bool(steady and not above[0]), finding + ("." if steady else " and more than once."))


def _helps_at_zero(theta: dict[str, Array], h: Array, name: str) -> Verdict:
    ratio = theta[name] / theta["local-em"]
    below = [f"{value:g}" for value in h[ratio < 1.0]]
    claim = f"{name_of(name)} estimates θ better than EM at each site alone where sites are alike."
    where = f"below it at h = {', '.join(below)}" if below else "at no h below it"
    return Verdict(
        claim, bool(ratio[0] < 1.0), f"{ratio[0]:.2f} times the θ error of Local-EM at h = {h[0]:g}; {where}."
    )


def _weights(study: Study, rows: list[Row], names: list[str]) -> list[Verdict]:
    means = {name: float(_means(study, rows, "weight_error", name).mean()) for name in names}
    others = {name: value for name, value in means.items() if name not in POOLED}
    if len(others) < 2:
        return []
    least, most = min(others, key=lambda n: others[n]), max(others, key=lambda n: others[n])
    finding = (
        f"averaged over h, from {others[least]:.3f} ({name_of(least)}) to {others[most]:.3f} ({name_of(most)}) without "
        "the pooled ones"
    )
    pooled = [means[name] for name in POOLED if name in means]
    finding += f", which are at {max(pooled):.3f}." if pooled else "."
    alike = others[most] <= 1.25 * others[least]
    apart = not pooled or min(pooled) > 1.5 * others[most]
    return [Verdict("The w errors of all methods are alike, except on pooled rows.", bool(alike and apart), finding)]


def _lifted(study: Study, theta: dict[str, Array], h: Array) -> list[Verdict]:
    """Why our picture is not the paper's: the starts. Told in numbers the paper printed, which are FedGrEM's only."""
    told = [(i, reported("theta_error", 0.95, float(value))) for i, value in enumerate(h)]
    pairs = [(i, value.mean) for i, value in told if value is not None]
    if study.name != "gmm" or not pairs or "fedgrem" not in theta:
        return []
    ours = np.array([theta["fedgrem"][i] for i, _ in pairs])
    paper = np.array([value for _, value in pairs])
    shared = all(s.start == "shared" for s in study.settings)
    finding = f"on average over h, our FedGrEM's θ error is {ours.mean():.2f} where the paper prints {paper.mean():.2f}"
    better = [
        name_of(n) for n, v in theta.items() if n != "fedgrem" and np.mean([v[i] for i, _ in pairs]) < paper.mean()
    ]
    if better:
        finding += f"; below the paper's FedGrEM are here also {', '.join(better)}"
    cause = (
        ". All methods begin at the same searched starts here, so the rivals are lifted with ours; `--start paper` "
        "shows the study without that."
        if shared and better
        else "."
    )
    return [
        Verdict("Our figures and the paper's agree.", bool(np.all(np.abs(ours / paper - 1) < 0.1)), finding + cause)
    ]


def _step_size(study: Study, rows: list[Row]) -> list[Verdict]:
    if not has_both_thresholds(study):
        return []
    sizes = eta_sizes(study)
    means = {
        (scaling, s.name): [mean_of(rows, "theta_error", setting=s.name, method=f"{scaling} {c:.2f}") for c in sizes]
        for scaling in ("fixed", "step")
        for s in study.settings
    }
    fixed, step = (
        max(relative_range(values) for (kind, _), values in means.items() if kind == scaling)
        for scaling in ("fixed", "step")
    )
    rising = [name for (kind, name), values in means.items() if kind == "fixed" and values[0] < values[-1]]
    rises = f", and rises at {', '.join(rising)}" if rising else ""
    begin = "the paper's kind of start" if study.settings[0].start == "paper" else "searched starts"
    largest = f"fixed {sizes[-1]:.2f}"
    worst = float(np.max(pick(rows, "theta_error", method=largest)))  # NaN, if any is
    settled = mean_of(rows, "settled", method=largest)
    differences = [
        mean_of(rows, "theta_error", setting=s.name, method=f"fixed {c:.2f}") / told.mean - 1.0
        for s in study.settings
        for c in sizes
        if (told := reported("theta_error", c, s.x)) is not None
    ]
    return [
        Verdict(
            f"The error of θ falls from C_eta = {sizes[0]:g} to {sizes[-1]:g}.",
            not rising,
            f"with the fixed threshold it changes by up to {fixed:.0%}{rises}. The reason: the threshold λ/√n is not "
            "scaled with the step, so a site that keeps its own answer settles λ/(√n C_eta) away from its own optimum; "
            "a smaller step means more fusion.",
        ),
        Verdict(
            "With the threshold scaled by the step, the error does not depend on C_eta (5% at most).",
            bool(step <= 0.05),
            f"it changes by up to {step:.2%}.",
        ),
        Verdict(
            f"Nothing diverges at C_eta = {sizes[-1]:g}.",
            bool(np.isfinite(worst) and worst < 10.0),
            f"the largest θ error of any seed is {worst:.2f}, and {settled:.0%} of the fits settled.",
        ),
        Verdict(
            "Our figures and the paper's agree.",
            bool(max(map(abs, differences)) < 0.1),
            f"our θ errors differ from the paper's by {min(differences):+.0%} to {max(differences):+.0%}, "
            f"{np.mean(differences):+.0%} on average. Ours begin at {begin}, the paper's at what each site found "
            "alone.",
        ),
    ]


def _sizes(study: Study, rows: list[Row]) -> list[Verdict]:
    if "fedgrem" not in {m.name for m in study.methods}:
        return []
    found = []
    for setting in study.settings:
        means = {m.name: mean_of(rows, "theta_error", setting=setting.name, method=m.name) for m in study.methods}
        best = min(means, key=lambda name: means[name])
        claim = f"FedGrEM has the least θ error at {setting.name}."
        finding = ", ".join(f"{name_of(name)} {value:.2f}" for name, value in means.items()) + "."
        found.append(Verdict(claim, means["fedgrem"] <= (1 + CLOSE) * means[best], finding))
    return found
