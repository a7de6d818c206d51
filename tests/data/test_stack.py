"""Stacks: parts are cut, kept and drawn by the name of a site; nothing depends on its neighbours."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrem.data.federation import Site, stack_sites
from fedgrem.data.stack import scratch


def make(sizes=(11, 9, 14), names="abc", weights=None):
    generator = np.random.default_rng(0)
    found = []
    for k, (n, name) in enumerate(zip(sizes, names, strict=False)):
        weight = np.ones(n) if weights is None else weights[k]
        found.append(Site(name, generator.normal(size=(n, 2)), np.arange(n, dtype=float), weight))
    return stack_sites(found, gaps=False)


def own_rows(stack, k):
    return {tuple(row) for row, weight in zip(stack.rows[k], stack.weight[k], strict=True) if weight > 0}


def test_some_of_the_sites_are_a_stack_that_derives_the_same():
    stack = make()
    calls = []

    def derive(of):
        return of.derive("squares", lambda s: calls.append(len(s)) or s.rows**2)

    whole = derive(stack)
    for index in (slice(1, 3), np.array([2, 0])):
        part = stack.select(index)
        assert part.names == tuple(np.array(stack.names)[index])
        np.testing.assert_array_equal(derive(part), whole[index])
        np.testing.assert_array_equal(part.target, stack.target[index])
        np.testing.assert_array_equal(part.n_rows, stack.n_rows[index])
    assert calls == [3]  # once for all


def test_what_is_derived_is_derived_once_however_many_threads_ask():
    stack, calls = make(), []
    barrier = threading.Barrier(4)

    def ask():
        barrier.wait()
        stack.derive("slow", lambda s: calls.append(1) or s.rows)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_scratch_is_a_threads_own():
    mine = scratch("test", (3, 4))
    mine[:] = 1.0
    theirs = []
    thread = threading.Thread(target=lambda: theirs.append(scratch("test", (3, 4)).fill(2.0)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(mine, 1.0)
    assert scratch("test", (2, 2)).base is mine.base  # and used again


@given(st.integers(1, 12), st.integers(1, 50_000), st.integers(1, 5))
def test_chunks_are_all_sites_once_in_order(n_sites, numbers, at_least):
    stack = make([8] * n_sites, [f"s{k}" for k in range(n_sites)])
    cut = list(stack.chunks(numbers, at_least))
    assert [k for part in cut for k in range(part.start, part.stop)] == list(range(n_sites))
    assert len(cut) >= min(2, at_least, n_sites)


@pytest.mark.parametrize("parts", [2, 4])
@given(n=st.integers(4, 40))
def test_parts_are_as_equal_as_can_be_and_every_row_is_in_or_out(parts, n):
    stack = make((n, n + 3), "ab")
    outside, inside = stack.halves(7, parts)
    for k in range(2):
        whole = own_rows(stack, k)
        firsts = []
        for half in range(2):
            kept, left = own_rows(inside, 2 * k + half), own_rows(outside, 2 * k + half)
            assert not kept & left
            assert kept | left == whole
            firsts.append(kept)
            assert abs(len(kept) - len(whole) / parts) < 1
        assert not firsts[0] & firsts[1]


def test_parts_depend_on_seed_and_name_and_not_on_neighbours_or_padding():
    together = make((11, 9, 14))
    outside, inside = together.halves(7, 2)
    for k, n in enumerate((11, 9, 14)):
        generator = np.random.default_rng(0)
        rows = [generator.normal(size=(m, 2)) for m in (11, 9, 14)][k]
        alone = stack_sites([Site("abc"[k], rows, None, np.ones(n))], gaps=False).halves(7, 2)
        for whole, one in zip((outside, inside), alone, strict=True):
            for half in range(2):
                assert own_rows(whole, 2 * k + half) == own_rows(one, half)
    other = together.halves(8, 2)
    assert any(own_rows(inside, k) != own_rows(other[1], k) for k in range(6))


def test_parts_keep_targets_and_weights_and_leave_rows_of_weight_zero_out():
    weight = [np.array([0.0, 2.0] * 5), np.ones(9), np.ones(14)]
    stack = make((10, 9, 14), weights=weight)
    outside, inside = stack.halves(1, 2)
    assert outside.n_rows[0] + inside.n_rows[0] == 10.0
    by_row = {tuple(row): (y, w) for row, y, w in zip(stack.rows[0], stack.target[0], stack.weight[0], strict=True)}
    for row, y, w in zip(inside.rows[0], inside.target[0], inside.weight[0], strict=True):
        assert w == 0.0 or by_row[tuple(row)] == (y, w)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 1.0])
def test_a_batch_is_a_share_of_the_rows_that_weighs_as_much_as_all(share):
    stack = make((20, 33, 8))
    batch = stack.batch(0, 3, share)
    np.testing.assert_allclose(batch.n_rows, stack.n_rows)
    for k, n in enumerate((20, 33, 8)):
        chosen = own_rows(batch, k)
        assert len(chosen) == max(1, round(share * n))
        assert chosen <= own_rows(stack, k)


def test_a_batch_is_another_for_every_number_and_the_same_for_the_same():
    stack = make()
    one, again, other = (stack.batch(0, number, 0.5) for number in (0, 0, 1))
    np.testing.assert_array_equal(one.rows, again.rows)
    assert any(own_rows(one, k) != own_rows(other, k) for k in range(3))
    alone = stack.select(np.array([1])).batch(0, 0, 0.5)
    assert own_rows(alone, 0) == own_rows(one, 1)


def test_uniforms_are_a_sites_own():
    stack = make()
    drawn = stack.uniforms(0, "start", (4,))
    np.testing.assert_array_equal(stack.select(np.array([2])).uniforms(0, "start", (4,)), drawn[2:])
    assert len(np.unique(drawn)) == 12
    assert not np.array_equal(stack.uniforms(0, "start", (4,), 1), drawn)
