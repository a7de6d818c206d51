"""What a study on real data shows, in sentences computed from its rows."""

import numpy as np

from fedgrem.report.names import name_of
from fedgrem.studies.pages.real_tables import NEAR, NOBODY, least, mean_errors, told
from fedgrem.studies.pages.stats import Row, Verdict, mean_of, paired
from fedgrem.studies.specs import Setting, Study

SLACK = 0.2
"""Points by which FedGrEM may be worse than EM at each site alone."""
TARGETS = {"pen": {0.0: 4.5, 20.5: 5.0}}
"""Study -> percent of contaminated sites -> the most mis-clustering that we want of FedGrEM."""
FEW = 60.0
"""Training rows per site at which sharing must pay."""


def real_verdicts(study: Study, rows: list[Row]) -> list[Verdict]:
    """The claims about this study, one by one; those about methods that were not run are left out."""
    names = {m.name for m in study.methods}
    if "fedgrem" not in names:
        return []
    if study.name == "pen-small":
        return _few_rows(study, rows) if "local-em" in names else []
    found = _best(study, rows) if len(names) > 1 else []
    if "local-em" in names:
        found.append(_no_harm(study, rows))
    found += [_target(study, rows, percent, most) for percent, most in TARGETS.get(study.name, {}).items()]
    rivals: list[str] = [name for name in ("local-em", "fedem") if name in names]
    return [*found, *(_order(study, rows, rivals) if rivals else [])]


def _best(study: Study, rows: list[Row]) -> list[Verdict]:
    settings = [s for s in study.settings if s.panel != NOBODY]
    if not settings:
        return []
    means = mean_errors(study, rows, settings)
    names = [m.name for m in study.methods]
    ours = means[names.index("fedgrem")]
    behind = ours - least(means)
    claim = f"FedGrEM is the best method, or within {NEAR} points of the best, wherever sites are contaminated."
    late = [int(i) for i in np.flatnonzero(~(behind <= NEAR))]  # NaN is late, too
    if not late:
        worst = int(np.argmax(behind))
        if behind[worst] <= 0:
            return [Verdict(claim, True, f"it is the best at all {len(settings)} settings.")]
        return [Verdict(claim, True, f"at worst it is {behind[worst]:.2f} points behind, at {settings[worst].name}.")]
    winners = (names[int(np.argmin(np.where(np.isnan(means[:, i]), np.inf, means[:, i])))] for i in late)
    listed = ", ".join(
        f"{settings[i].name} (FedGrEM {ours[i]:.2f}, {name_of(winner)} {means[names.index(winner), i]:.2f})"
        for i, winner in zip(late, winners, strict=True)
    )
    return [Verdict(claim, False, f"it is farther behind at {len(late)} of {len(settings)}: {listed}.")]


def _no_harm(study: Study, rows: list[Row]) -> Verdict:
    gaps = {s.name: paired(rows, "error", s.name, "fedgrem", "local-em").mean for s in study.settings}
    claim = f"At no setting is FedGrEM worse than EM at each site alone by more than {SLACK} points."
    late = [f"{name} ({gap:+.2f})" for name, gap in gaps.items() if not gap <= SLACK]
    if late:
        return Verdict(claim, False, f"it is at {', '.join(late)}.")
    worst = max(gaps, key=lambda name: gaps[name])
    if gaps[worst] < 0:
        return Verdict(claim, True, f"it is better everywhere, by {-gaps[worst]:.2f} points at least, at {worst}.")
    return Verdict(claim, True, f"at worst it is {gaps[worst]:.2f} points above Local-EM, at {worst}.")


def _target(study: Study, rows: list[Row], percent: float, most: float) -> Verdict:
    settings = [s for s in study.settings if s.x == percent]
    means = {s.name: mean_of(rows, "error", setting=s.name, method="fedgrem") for s in settings}
    paper = told(study, percent, "fedgrem")
    beside = f" (the paper: {paper.mean:.2f}%)" if paper is not None else ""
    way = ", in whatever way" if percent else ""
    claim = f"FedGrEM puts at most {most}% of rows into a wrong group with {percent:g}% of sites contaminated{way}"
    finding = ", ".join(f"{mean:.2f}% at {name}" for name, mean in means.items())
    holds = all(mean <= most for mean in means.values()) if means else None
    return Verdict(f"{claim}{beside}.", holds, f"{finding or 'there is no such setting'}.")


def _order(study: Study, rows: list[Row], rivals: list[str]) -> list[Verdict]:
    """Asked where the paper has it so: on MNIST without contamination it has FedEM below FedGrEM."""
    asked = [s for s in study.settings if _ordered_in_paper(study, s, rivals)]
    if not asked:
        return []
    listed = " and ".join(map(name_of, rivals))
    claim = f"The paper's order holds: FedGrEM below {listed}"
    others = [s.name for s in study.settings if s not in asked]
    claim += f" (except at {', '.join(others)}, where it is not so in the paper)." if others else "."
    gaps = {(s.name, rival): paired(rows, "error", s.name, "fedgrem", rival) for s in asked for rival in rivals}
    against = {key: gap for key, gap in gaps.items() if not gap.mean < 0}
    if not against:
        smallest = max(gaps, key=lambda key: gaps[key].mean)
        finding = f"by {-gaps[smallest].mean:.2f} points at least ({name_of(smallest[1])} at {smallest[0]})."
        return [Verdict(claim, True, finding)]
    clear = any(gap.mean > 2 * gap.se or gap.n == 0 for gap in against.values())
    told_gaps = ", ".join(
        f"{name_of(rival)} at {name} ({gap.mean:+.2f}" + (f", standard error {gap.se:.2f})" if gap.n > 1 else ")")
        for (name, rival), gap in against.items()
    )
    doubt = "" if clear else "; by no more than two standard errors, or on a single seed"
    return [Verdict(claim, False if clear else None, f"it is not below {told_gaps}{doubt}.")]


def _ordered_in_paper(study: Study, setting: Setting, rivals: list[str]) -> bool:
    ours = told(study, setting.x, "fedgrem")
    theirs = [told(study, setting.x, rival) for rival in rivals]
    return ours is not None and all(one is not None and ours.mean < one.mean for one in theirs)


def _few_rows(study: Study, rows: list[Row]) -> list[Verdict]:
    gaps = {s.x: paired(rows, "error", s.name, "fedgrem", "local-em") for s in study.settings}
    if FEW not in gaps:
        return []
    gap = gaps.pop(FEW)
    claim = f"With {FEW:g} training rows per writer, FedGrEM is better than EM at each site alone by more than the "
    claim += "standard error of their difference."
    finding = f"{gap.mean:+.2f} points, standard error {gap.se:.2f}" if gap.n > 1 else f"{gap.mean:+.2f} points"
    if gaps:
        finding += "; with " + ", ".join(f"{x:g} rows {other.mean:+.2f}" for x, other in sorted(gaps.items()))
    return [Verdict(claim, bool(-gap.mean > gap.se) if gap.n > 1 else None, f"{finding}.")]
