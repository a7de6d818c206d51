"""What the page of a study on real data says of its data, of contamination and of embeddings."""

from html import escape

from fedgrem.report.page import fact_list
from fedgrem.studies.pages.real_tables import ways_of
from fedgrem.studies.specs import FITS, Study

_PEN = (
    "Pen-Based Recognition of Handwritten Digits (UCI data set 81, Alpaydin and Alimoglu, CC BY 4.0): 10,992 digits, "
    "16 features, 44 writers, each of them a site"
)
_IMAGES = "70,000 images of 28 x 28 pixels in 10 classes, divided among 100 sites at random, embedded in 10 dimensions"
SOURCES = {
    "pen": _PEN,
    "pen-small": _PEN,
    "mnist": f"MNIST (LeCun, Cortes and Burges): {_IMAGES}",
    "fashion": f"Fashion-MNIST (Zalando Research, MIT licence): {_IMAGES}",
}
"""Study -> data set, source, licence, sites."""
EMBEDDED = ("mnist", "fashion")
_BY_CONTAMINATION = (
    "Mean mis-clustering on held-out rows of the sites that are not contaminated, by the share of sites that are, one "
    "panel per way of contamination. The band is FedGrEM's, two standard errors either side; hollow marks are the "
    "paper's FedGrEM, the same in every panel, since the paper does not say which way it used."
)
REAL_CAPTIONS = {
    "pen": _BY_CONTAMINATION,
    "mnist": _BY_CONTAMINATION + " Theirs are on another embedding.",
    "fashion": _BY_CONTAMINATION + " Theirs are on another embedding.",
    "pen-small": "Left: mean mis-clustering on held-out rows by the rows that each writer has for training; the band "
    "is FedGrEM's, two standard errors either side. Right: the difference, seed by seed.",
}
CONTAMINATION = {
    "far": "the rows that the site fits are replaced by a Gaussian far away from all others",
    "permuted": "its features are permuted: the same columns in another order",
    "clump": "its rows are replaced by a tight clump near a cluster of another site",
}
"""Way -> what is done to a contaminated site."""
SHAPES = {
    "identity": "unit covariances, as in the paper",
    "spherical": "one variance each",
    "diag": "a variance for every column each",
    "tied": "one shared covariance matrix",
    "full": "a covariance matrix each",
}
"""Covariance -> what the components have."""
OURS = (
    "the paper's fixed penalty C = 2 (for covariances too, where they are estimated), rows counted by site, one "
    "gradient step with C_eta = 0.95 a round and no extrapolation; other than in the paper, steps are divided by the "
    "present weights and the center is solved to tolerance. No penalty is chosen on held-out rows, and no site is "
    'given its own fit back: the default of the estimators, penalty="auto", does both; benchmarks/pen_defaults.py '
    "compares it with fixed penalties on Pen digits"
)
"""Which FedGrEM is run: :data:`fedgrem.studies.specs.OURS` in words, not the default of an estimator."""


def real_lead(study: Study, n_seeds: int) -> str:
    """The sentences below the title."""
    return (
        f"A study on real data after Tian, Weng and Feng (ICML 2024), run with fedgrem. {SOURCES[study.name]}. "
        f"{len(study.settings)} settings, {len(study.methods)} methods, {n_seeds} seeds. "
    )


def real_facts(study: Study) -> dict[str, str]:
    """What was fitted and what was scored."""
    fits = FITS[study.settings[0].model]
    covariance = study.settings[0].covariance
    kept = "as many rows of each site as the setting says" if study.name == "pen-small" else "four fifths of each site"
    facts = {
        "data": SOURCES[study.name],
        "each seed": f"{kept} are fitted without labels; a fifth that no fit has seen is scored, with the groups of "
        "each site matched to its labels as suits it best",
        "model": f"Gaussian components with {SHAPES[covariance]}, in units common to all sites, for all methods; the "
        "paper's have identity covariances",
        "starts": f"the best of {fits.n_init} restarts of {fits.short} EM iterations at every site, followed for "
        f"{fits.long}, twice, and compared with the common one; on pooled rows, the best of 10 restarts "
        "of 20 iterations, on some 4,000 rows if there are more, or the start that the sites have in common, whichever "
        f"is likelier after {fits.long} rounds on all",
        "fits": f"until parameters move by less than {fits.tolerance:g} a round, {fits.most_rounds} rounds at most",
    }
    return facts | ({"FedGrEM": OURS} if any(m.name == "fedgrem" for m in study.methods) else {})


def embedding_words(note: str = "") -> str:
    """Which embedding was used, as the run tells it, and what follows from that."""
    used = note.strip() or "Which embedding was used is not recorded with this run."
    return (
        f"{used} The paper embedded by t-SNE in 10 dimensions and does not say which program or settings it used. "
        "Distances and densities are an embedding's own: figures on this page can be compared between methods, not "
        "with the paper's. An embedding is made of all rows at once, without labels, before sites are drawn."
    )


def real_notes(study: Study, note: str) -> list[str]:
    """What a reader must know before the tables: the note of the run and the embedding, as markup."""
    text = embedding_words(note) if study.name in EMBEDDED else note.strip()
    return [f'<p class="note">{escape(text)}</p>'] if text else []


def contamination_words(study: Study) -> list[str]:
    """How sites were contaminated, as markup; nothing where none was."""
    ways = [way for way in ways_of(study) if way in CONTAMINATION]
    if not ways:
        return []
    told = "The paper does not say what it did to the sites it contaminated. Here each of these was run; which "
    told += "sites are hit is drawn anew with each seed. Errors are those of the other sites."
    facts = {escape(way): escape(CONTAMINATION[way]) for way in ways}
    return ["<h2>How sites were contaminated</h2>", f'<p class="note">{escape(told)}</p>', fact_list(facts)]
