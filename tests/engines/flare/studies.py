"""Small data, and sites at work without a network."""

import numpy as np
import polars as pl

from fedgrem.engines.flare.engine import Answer
from fedgrem.engines.flare.guard import Guard
from fedgrem.engines.flare.site import DeclinedError, Settings, SiteAtWork
from fedgrem.engines.flare.wire import encode

NAMES = ("east", "north", "south")
SIZES = {"east": 30, "north": 47, "south": 30}


def rows_of(name, n_columns=2):
    """Two groups; every site a little different, and of another size."""
    seed = sum(map(ord, name))
    generator = np.random.default_rng(seed)
    group = generator.integers(2, size=SIZES.get(name, 35))
    rows = generator.normal(size=(len(group), n_columns)) + (6.0 * group - 3.0)[:, None]
    return rows + 0.1 * (seed % 7), (2.0 * group - 1.0) * rows[:, 0] + generator.normal(size=len(group))


def write_site(folder, name, *, target=False, n_columns=2, **settings):
    """A site's file; returns its settings."""
    rows, response = rows_of(name, n_columns)
    columns = [f"x{j}" for j in range(n_columns)]
    table = pl.DataFrame(rows, schema=columns).with_columns(y=pl.Series(response))
    path = folder / f"{name}.parquet"
    table.write_parquet(path)
    return Settings(str(path), tuple(columns), "y" if target else None, **settings)


class AtHand:
    """A transport without a network: sites at work in this process, each behind its guard."""

    def __init__(self, folder, recipe, names=NAMES, spoil=None, **settings):
        target = recipe.family == "regression"
        self.sites, self.guards, self.asked = {}, {}, []
        self.spoil = spoil or (lambda site, task, exchange, answer: answer)
        for name in names:
            mine = write_site(folder, name, target=target, **settings)
            self.sites[name] = SiteAtWork(name, mine, recipe)
            self.guards[name] = Guard(mine, recipe, folder / f"{name}.jsonl")

    def ask(self, site, task, exchange, order, timeout):
        self.asked.append((site, task, exchange))
        try:
            reply = encode(self.sites[site].answer(task, order))
            self.guards[site].let_out(task, reply, job="job", exchange=exchange)
        except DeclinedError as error:
            return self.spoil(site, task, exchange, Answer(None, exchange, error.code))
        return self.spoil(site, task, exchange, Answer(reply, exchange))
