"""The standing texts on the page of a fit: methods, words, and what stands beside tables and figures."""

ALGORITHM_WORDS = {
    "fedgrem": "In every round each site improves its own mixture a little on its own rows and sends the result. "
    "The center moves sites that are close to each other onto one common answer, and the others a little towards it.",
    "local-em": "Each site fits its own rows alone; nothing is shared. The center is only the middle of the sites, "
    "to compare them with.",
    "local-grem": "Each site fits its own rows alone, by small steps; nothing is shared. The center is only the "
    "middle of the sites, to compare them with.",
    "pooled-em": "All rows are put in one pot, as if they came from one site.",
    "pooled-grem": "All rows are put in one pot, as if they came from one site, and fitted by small steps.",
    "fedem": "In every round the components that the sites found are averaged, so that all sites share them; each "
    "site keeps its own weights.",
    "fedgmm": "All sites share the components, with shapes of their own; each site keeps its own weights.",
    "tgmm": "Each site fits its own rows, drawn towards the average of what the other sites found before round 1.",
    "fedem-sa": "All sites share the components, computed from compressed summaries of the sites that take part in a "
    "round; each site keeps its own weights.",
}
GROUPS = {
    "FederatedGaussianMixture": "groups of similar rows",
    "FederatedRegressionMixture": "kinds of rows, each with its own linear relation to the response",
}
WORDS = {
    "site": "A place that holds rows of its own, such as a hospital. The rows stay there.",
    "component": "A group of similar rows. Its number means the same thing at every site.",
    "weight": "The share of a site's rows that belong to a component.",
    "center": "What the sites have in common: one answer per component.",
    "at the center": "The site ended exactly on the common center: its rows gave no reason to differ.",
    "similar": "Close to the center, but not exactly on it in every component.",
    "own answer": "The site's rows clearly speak for an answer of its own.",
    "suspect": "Farther from the center, or with rows that fit its own answer worse or better, than chance, its size "
    "and the spread of the other sites explain. About 1% of honest sites are called so: a reason to look, no proof.",
    "log-likelihood": "How probable rows are under a fitted mixture, on a log scale; higher is better. A difference "
    "of 0.1 per row means that a row is about 10% more probable.",
}
NOTES = {
    "penalty": "Before the fit, every site held some of its rows back. For each penalty, from every site alone "
    "to one answer for all, the others were fitted together with those of the other sites and judged on the rows they "
    "had not seen. Sites sent how much better they were described than alone, and nothing else. The largest penalty "
    "within a standard error of the best was taken.",
    "penalty marks": "Thin lines are sites, orange ones those that were given their own fit back; the thick one is "
    "their mean without the highest and lowest quarter, with its standard error against the best.",
    "released": "Worse off together than alone by more than three standard errors, and therefore fitted alone:",
    "nobody released": "No site was clearly worse off together than alone.",
    "means": "Each number is the typical value of a column within a component, in the column's own unit.",
    "coef": "Each number is how much the response rises with one unit of the column, within a component.",
    "params": "Each number is a parameter of a component.",
    "shades": "Orange lies above the middle of the components, blue below, line by line.",
    "spread": "After ± stands the spread of rows within a component.",
    "around": "Large marks are the common centers, small open ones the answers of sites that keep their own, black "
    "crosses those of suspect sites.",
    "sites": "The bar shows how a site's rows divide among the components. The numbers under the components are "
    "distances from the center: a dot means exactly at it, the darker the farther, and a bold number is beyond what "
    "chance, the spread of the other sites and the site's own size explain. <i>Own rows</i> is how far from the center "
    "its rows alone would lead, over all components. Suspects come first.",
    "noise units": "Distances count in units of the spread within components, whatever the units of the columns.",
    "limits": "One line per site, one mark per component; the circle counts the components at the center. The cross is "
    "where the site's rows alone would lead, over all components; the shaded bar ends where that becomes suspect.",
    "pull": "Ticks are the pull of the center, one for each component, the rarer the farther out: an answer within it "
    "is moved onto the center, one beyond it is moved by that much, and what is left is drawn. A site that was fitted "
    "alone has none.",
    "vanished": "Less than one row counts as none: the site can say nothing about that component. An empty dot in the "
    "table marks it.",
    "deviations": "Column by column, in its own unit, for the sites farthest out; a dot means at the center. Where the "
    "rows of a site are clearly more or less spread than is common, that is told too, as a multiple of the "
    "common spread. Open a line to see them.",
    "gain": "A fifth of every site's rows was held back. The rest was fitted twice with the same options: by all "
    "sites together, and by each site alone. The gain is the difference in log-likelihood per held-back row, ± its "
    "standard error; below zero, working together cost the site something. Within two standard errors it is unclear.",
    "gain marks": "Marks with two standard errors either side.",
    "gain not settled": "One of the two fits had not settled in the rounds allowed; take these figures with care.",
    "alone": "This model was fitted at each site alone; there is nothing to compare.",
    "needs rows": "This is judged on rows that are held back, and a model holds no rows. To see it, write the page "
    "again with rows: <code>fedgrem report MODEL --data data.csv</code> in the shell, or "
    "<code>model.report(&quot;report.html&quot;, X, sites=sites)</code> in Python.",
    "rows": "Columns are centered and scaled first; colours are the most probable components.",
    "movement": "How far answers moved in each round; the fit stops when they move less than the tolerance.",
    "likelihood": "It need not rise to the end: a site may give up a little on its own rows for what is common.",
    "no rows": "This page holds no rows, only fitted numbers and counts. Fitted numbers still say something about "
    "the rows, the more so the smaller a component is: share the page with those who may see the model.",
    "rows are private": "This page shows rows, one mark each, drawn at random because this was asked for. Rows are "
    "private: share the page only with those who may see them.",
}
"""What stands above, below and beside the tables and figures; markup."""
