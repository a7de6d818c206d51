"""Small data, and sites at work without a network."""

import random
import time

import numpy as np
import polars as pl

from fedgrem.algorithms.fedgrem import FedGrEM
from fedgrem.engines.remote.delivery import Answer
from fedgrem.engines.remote.guard import Guard
from fedgrem.engines.remote.log import Log, read_log
from fedgrem.engines.remote.site import DeclinedError, Settings, SiteAtWork
from fedgrem.engines.remote.wire import pack
from fedgrem.families.gaussian import Gaussian
from fedgrem.fit.spec import FitSpec

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
    return Settings(str(path), tuple(columns), "y" if target else None, **{"floor": 1.0} | settings)


def guard_of(settings, spec, log, *, name="north", run="run-1", **more):
    """The guard of a site, as its worker makes it."""
    return Guard(SiteAtWork(name, settings, spec), Log(log), lambda: read_log(log), run=run, **more)


def spec_of(*, family=None, **options):
    """A small fit of two unit Gaussians, or of another family."""
    return FitSpec(family or Gaussian(), FedGrEM(), 2, **options)


def fields(**arrays):
    """Arrays as they travel; a dot in a name is written as two underscores."""
    return {name.replace("__", "."): pack(np.asarray(array)) for name, array in arrays.items()}


class AtHand:
    """A wire without a network: sites at work in this process, each behind its guard, that answer in any order."""

    def __init__(self, folder, spec, names=NAMES, spoil=None, run="run-1", **settings):
        self.guards, self.asked = {}, []
        self.spoil = spoil or (lambda site, task, exchange, answer: answer)
        self._dice = random.Random(len(names))
        for name in names:
            mine = write_site(folder, name, target=spec.family.has_target, **settings)
            self.guards[name] = guard_of(mine, spec, folder / f"{name}.jsonl", name=name, run=run)

    def ask(self, site, task, exchange, order, timeout):
        self.asked.append((site, task, exchange))
        time.sleep(0.002 * self._dice.random())
        try:
            reply = self.guards[site].answer(task, order, exchange=exchange)
        except DeclinedError as error:
            return self.spoil(site, task, exchange, Answer(None, exchange, error.code))
        return self.spoil(site, task, exchange, Answer(reply, exchange))
