"""Networks as data: a network that can be used, and its nodes as rows of a spectral embedding."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from fedgrem.errors import InputError, InputTypeError, ShapeError
from fedgrem.types import Array

FEWEST_NODES = 4
SCREE = 30
"""Eigenvalues that are looked at to find a dimension, at the most."""


def embed_network(adjacency: Any, dimension: int | str = "auto") -> Array:
    """The adjacency spectral embedding of a network: its nodes as rows ``(n, d)``.

    The leading eigenvectors, by the absolute value of their eigenvalues, each times its square root (Sussman, Tang,
    Fishkind and Priebe, 2012). Nodes of one community of a stochastic block model are about normal about one point
    there. Embeddings of two networks are alike up to a rotation only.

    Parameters
    ----------
    adjacency : (n, n) symmetric array or sparse array; weights >= 0, no self-loops, connected.
    dimension : d; "auto" takes that at which the scree breaks, by the profile likelihood of Zhu and Ghodsi (2006).

    Examples
    --------
    >>> blocks = np.kron(np.eye(2), np.ones((4, 4))) - np.eye(8)
    >>> blocks[3, 4] = blocks[4, 3] = 1.0
    >>> embed_network(blocks, 2).shape
    (8, 2)
    """
    network = check_network(adjacency)
    n = network.shape[0]
    auto = isinstance(dimension, str)
    if auto and dimension != "auto":
        raise InputError(f"dimension is {dimension!r}, expected a whole number or 'auto'.")
    if not auto and not (isinstance(dimension, int | np.integer) and 1 <= dimension < n):
        raise InputError(f"dimension is {dimension!r}, expected a whole number from 1 to {n - 1} for {n} nodes.")
    size = min(SCREE, n - 1) if auto else int(dimension)
    # A fixed first vector: Lanczos begins at random otherwise, and signs would differ from run to run.
    values, vectors = eigsh(network, k=size, which="LM", v0=np.ones(n))
    order = np.argsort(-np.abs(values), kind="stable")
    values, vectors = np.abs(values[order]), vectors[:, order]
    if auto:
        size = scree_break(values)
    # Of a vector and its opposite, that whose largest entry is positive.
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.asarray((vectors * np.sign(largest) * np.sqrt(values))[:, :size])


def scree_break(values: Array) -> int:
    """How many of these numbers, from the largest down, stand apart from the others, by profile likelihood.

    The first d and the others are taken as normal about means of their own with one variance (Zhu and Ghodsi, 2006).

    Examples
    --------
    >>> scree_break(np.array([9.0, 8.8, 8.5, 1.2, 1.0, 0.9, 0.8]))
    3
    """
    n = len(values)
    within = [np.square(v - v.mean()).sum() for d in range(1, n) for v in (values[:d], values[d:])]
    return 1 + int(np.argmin(np.reshape(within, (n - 1, 2)).sum(axis=1))) if n > 1 else 1


def check_network(adjacency: Any, name: str = "the network") -> csr_array:
    """The network as a sparse array, or an error that says what is wrong with it."""
    try:
        network = csr_array(adjacency if issparse(adjacency) else np.asarray(adjacency, dtype=float), dtype=float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} is not a numeric adjacency matrix: {error}.") from error
    if network.ndim != 2 or network.shape[0] != network.shape[1]:
        raise ShapeError(f"{name} has shape {network.shape}, expected (n, n), a row and a column for every node.")
    network.eliminate_zeros()
    if network.shape[0] < FEWEST_NODES:
        raise InputError(f"{name} has {network.shape[0]} node(s), expected at least {FEWEST_NODES}.")
    if not np.isfinite(network.data).all():
        raise InputError(f"{name} has edges that are NaN or infinite; an absent edge is 0.")
    if (network.data < 0).any():
        raise InputError(
            f"{name} has {int((network.data < 0).sum()) // 2} edge(s) of negative weight; weights are > 0."
        )
    if network.diagonal().any():
        loops = np.flatnonzero(network.diagonal())
        raise InputError(f"{name} has {len(loops)} self-loop(s), the first at node {loops[0]}; set the diagonal to 0.")
    if (abs(network - network.T) > 1e-12 * network.max()).nnz:
        raise InputError(
            f"{name} is not symmetric; edges have no direction here: give (A + A.T) / 2, or A + A.T if they are counts."
        )
    isolated = np.flatnonzero(np.diff(network.indptr) == 0)
    if len(isolated):
        raise InputError(
            f"{name} has {len(isolated)} node(s) without an edge, the first number {isolated[0]}; leave them out: "
            "nothing says where they belong."
        )
    n_parts, part = connected_components(network, directed=False)
    if n_parts > 1:
        sizes = np.sort(np.bincount(part))[::-1]
        raise InputError(
            f"{name} falls into {n_parts} parts without an edge between them, of {sizes[0]} nodes and fewer; give its "
            "largest part, or each as a network of its own."
        )
    return network
