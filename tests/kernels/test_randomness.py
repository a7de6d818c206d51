"""Random numbers of a site: from seed, name and purpose, and from nothing else."""

import numpy as np
import pytest

from fedgrem.kernels.randomness import generator_for


def test_the_numbers_are_pinned_so_that_every_machine_draws_the_same():
    np.testing.assert_array_equal(generator_for(0, "north", "start").integers(1000, size=4), [633, 929, 83, 777])


@pytest.mark.parametrize("other", [(1, "north", "start"), (0, "south", "start"), (0, "north", "parts"),
                                   (0, "north", "start", 1), (0, "northstart", "")])  # fmt: skip
def test_another_seed_site_or_purpose_draws_others(other):
    ours, theirs = (generator_for(*words).random(4) for words in ((0, "north", "start"), other))
    assert not np.any(ours == theirs)
