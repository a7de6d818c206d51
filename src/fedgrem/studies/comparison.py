"""The two halves of the paper's simulation figure, ``gmm`` and ``mor``: all methods by the heterogeneity h."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedgrem.plots.axes import finish, new_figure
from fedgrem.report.text import name_of
from fedgrem.studies.base import METHODS, Page, Results, Study, Table, Verdict, effort_table, error_tables, h_grid, stat
from fedgrem.studies.base import methods as methods_named
from fedgrem.studies.drawing import legend, method_line
from fedgrem.studies.paper import reported
from fedgrem.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = 0.03
"""Within this share of the best counts as best."""
POOLED = ("pooled-em", "pooled-grem")
DIGITS = {"theta_error": 2, "weight_error": 3}
SNR_LABEL = r"$h$ / SNR,  SNR = $\min_{k\in S}\,\max_{r\neq r'}\,\|\theta_r^{(k)}-\theta_{r'}^{(k)}\|$"
CAPTION = (
    "Mean over seeds of the log of the largest error over honest sites and components; the band is FedGrEM's, two "
    "standard errors either side. The upper axis gives h itself. Left: mixture weights; right: "
)
SNR_NOTE = (
    "The horizontal axis uses the SNR of the paper's appendix: the least, over honest sites, of the largest distance "
    "between two components. The paper's text puts h = 2 at 35.92%, which is h over the distance of the two nearest "
    "centers, √31; on the appendix's definition it is {last:.1%}. The order of the points is the same either way."
)


def gmm(quick: bool = False) -> Study:
    """The GMM panel of the paper's simulation figure."""
    settings = h_grid("gmm", 2.0, 0.5 if quick else 0.25)
    return Study("gmm", "Gaussian mixtures", settings, methods_named(*METHODS), 8 if quick else 100, page)


def mor(quick: bool = False) -> Study:
    """The regression panel of the paper's simulation figure."""
    settings = h_grid("mor", 2.0, 1.0 if quick else 0.25)
    return Study("mor", "Mixtures of regressions", settings, methods_named(*METHODS), 4 if quick else 100, page)


def page(results: Results) -> Page:
    """Errors of both parameters by h, beside the paper's where it has any."""
    gaussian, last = results.study.name == "gmm", results.settings[-1]
    snr = results.stat("snr", last, results.names[0]).mean
    tables = error_tables(results)
    if gaussian and "fedgrem" in results.names:
        tables.append(_beside_paper(results))
    return Page(
        partial(_figure, results),
        CAPTION + ("component means." if gaussian else "regression coefficients."),
        [*tables, effort_table(results, 3)],
        _verdicts(results),
        remark=SNR_NOTE.format(last=last.x / snr) if last.x == 2.0 else "",
    )


def _beside_paper(results: Results) -> Table:
    settings = [s for s in results.settings if reported("theta_error", 0.95, s.x)]
    body = []
    for measure, word in (("weight_error", "w"), ("theta_error", "θ")):
        digits = DIGITS[measure]
        ours = [results.stat(measure, s, "fedgrem") for s in settings]
        told = [reported(measure, 0.95, s.x) for s in settings]
        body += [
            [f"{word}, ours", *(one.text(digits) for one in ours)],
            [f"{word}, the paper", *(one.text(digits) if one else "—" for one in told)],
            [f"{word}, difference"]
            + [f"{a.mean - b.mean:+.{digits}f}" if b else "—" for a, b in zip(ours, told, strict=True)],
        ]
    note = "The paper prints numbers for FedGrEM only, in its tables over C_eta; this is their row 0.95, our default."
    return Table("FedGrEM beside the paper's figures", ["", *(s.name for s in settings)], body, note)


def _verdicts(results: Results) -> list[Verdict]:
    names, h = results.names, np.array([s.x for s in results.settings])
    theta = {name: results.means("theta_error", name) for name in names}
    found = []
    if "fedgrem" in names and len(names) > 1:
        found.append(_best(theta, h))
    if "local-em" in names:
        found += [_crossing(theta, h, name) for name in ("fedem", "tgmm") if name in names]
        if "fedgmm" in names:
            found.append(_helps_at_zero(theta, h))
        if "fedgrem" in names:
            ratio = theta["fedgrem"][-1] / theta["local-em"][-1]
            claim = "FedGrEM is no worse than EM at each site alone even at the largest h (the paper: comparable)."
            finding = f"at h = {h[-1]:g} its θ error is {ratio:.2f} times that of Local-EM."
            found.append(Verdict(claim, bool(ratio <= 1.1), finding))
    return [*found, *_weights(results), *_lifted(results, theta)]


def _best(theta: dict[str, Array], h: Array) -> Verdict:
    behind = theta["fedgrem"] / np.nanmin(list(theta.values()), axis=0) - 1.0
    claim = f"FedGrEM has the least θ error of all methods, or is within {CLOSE:.0%} of it, at every h."
    told = []
    for i in np.flatnonzero(behind > CLOSE):
        winner, least = min(((name, values[i]) for name, values in theta.items()), key=lambda one: one[1])
        told.append(f"h = {h[i]:g} ({name_of(winner)} {least:.2f}, FedGrEM {theta['fedgrem'][i]:.2f})")
    if told:
        return Verdict(claim, False, f"it is farther behind at {', '.join(told)}.")
    return Verdict(claim, True, f"at worst it is {max(behind.max(), 0.0):.1%} behind the best of the others.")


def _crossing(theta: dict[str, Array], h: Array, name: str) -> Verdict:
    above = theta[name] > theta["local-em"]
    claim = f"{name_of(name)} beats EM at each site alone for small h and becomes inferior to it as h grows."
    if above.all():
        return Verdict(claim, False, "its θ error is above that of Local-EM at every h here.")
    if not above.any():
        return Verdict(claim, False, f"its θ error stays below that of Local-EM up to h = {h[-1]:g}.")
    first = int(above.argmax())
    if above[first:].all():
        return Verdict(claim, first > 0, f"its θ error is above that of Local-EM from h = {h[first]:g} on.")
    return Verdict(claim, False, f"it crosses at h = {h[first]:g} and more than once.")


def _helps_at_zero(theta: dict[str, Array], h: Array) -> Verdict:
    ratio = theta["fedgmm"] / theta["local-em"]
    below = ", ".join(f"{value:g}" for value in h[ratio < 1.0])
    where = f"below it at h = {below}" if below else "at no h below it"
    claim = "FedGMM estimates θ better than EM at each site alone where sites are alike."
    return Verdict(
        claim, bool(ratio[0] < 1.0), f"{ratio[0]:.2f} times the θ error of Local-EM at h = {h[0]:g}; {where}."
    )


def _weights(results: Results) -> list[Verdict]:
    means = {name: float(results.means("weight_error", name).mean()) for name in results.names}
    others = {name: value for name, value in means.items() if name not in POOLED}
    if len(others) < 2:
        return []
    least, most = min(others, key=lambda n: others[n]), max(others, key=lambda n: others[n])
    pooled = [means[name] for name in POOLED if name in means]
    finding = (
        f"averaged over h, from {others[least]:.3f} ({name_of(least)}) to {others[most]:.3f} ({name_of(most)}) without "
        "the pooled ones" + (f", which are at {max(pooled):.3f}." if pooled else ".")
    )
    alike = others[most] <= 1.25 * others[least] and (not pooled or min(pooled) > 1.5 * others[most])
    return [Verdict("The w errors of all methods are alike, except on pooled rows.", alike, finding)]


def _lifted(results: Results, theta: dict[str, Array]) -> list[Verdict]:
    """Why our picture is not the paper's: the starts. Told in numbers the paper printed, which are FedGrEM's only."""
    told = [reported("theta_error", 0.95, s.x) for s in results.settings]
    there = np.array([one is not None for one in told])
    if results.study.name != "gmm" or not there.any() or "fedgrem" not in theta:
        return []
    paper = np.array([one.mean for one in told if one])
    ours, mean = theta["fedgrem"][there], float(paper.mean())
    finding = f"on average over h, our FedGrEM's θ error is {ours.mean():.2f} where the paper prints {mean:.2f}"
    better = [name_of(name) for name, v in theta.items() if name != "fedgrem" and v[there].mean() < mean]
    if better:
        finding += f"; below the paper's FedGrEM are here also {', '.join(better)}"
        if all(s.start == "shared" for s in results.settings):
            finding += ". All methods begin at the same searched starts here, so the rivals are lifted with ours; "
            finding += "--start paper shows the study without that"
    agree = bool(np.all(np.abs(ours / paper - 1) < 0.1))
    return [Verdict("Our figures and the paper's agree.", agree, f"{finding}.")]


def _figure(results: Results) -> Figure:
    figure = new_figure((11.0, 5.0), dpi=160)
    axes = figure.subplots(1, 2)
    h = [s.x for s in results.settings]
    x = np.array([s.x / results.stat("snr", s, results.names[0]).mean for s in results.settings])
    for ax, measure, word in zip(axes, ("weight_error", "theta_error"), ("$w$", r"$\theta$"), strict=True):
        for name in reversed(results.names):  # ours on top
            logs = [stat(np.log(results.values(measure, s, name))) for s in results.settings]
            method_line(ax, x, logs, name)
        finish(ax, f"{results.study.title.split(' (')[0]}: {word}", SNR_LABEL, f"log$_e$ error of {word}", grid="y")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        top = ax.secondary_xaxis("top")
        top.set_xticks(x, [f"{value:g}" if i % max(1, len(h) // 5) == 0 else "" for i, value in enumerate(h)])
        top.tick_params(length=3, labelsize=8, colors="#666666")
        top.spines["top"].set_visible(False)
        top.set_xlabel("$h$", fontsize=9, color="#666666", loc="right")
    legend(figure, axes[0], results.names)
    return figure
