"""MNIST and Fashion-MNIST from their idx files, from a folder or downloaded, checked unpacked.

MNIST is by LeCun, Cortes and Burges, Fashion-MNIST by Zalando (MIT licence). Check sums are of contents: gzip headers
carry a time stamp that differs between mirrors.
"""

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.studies.download import Progress, cache_folder, fetch
from fedgrem.types import Array


class RealData(NamedTuple):
    """A data set as it was published."""

    rows: Array
    """(N, p) float64."""
    labels: Array
    """(N,) integers from 0: the digit, or the kind of clothes. For scoring only."""
    sites: Array | None
    """(N,) integers from 1: who wrote the digit. None where the data set has no sites of its own."""


class ImageSource(NamedTuple):
    """Where images come from: four idx files, training half first."""

    name: str
    """Of the folder that holds them."""
    title: str
    address: str
    """Of the folder that holds the files with the ending ``.gz``."""
    files: Mapping[str, tuple[tuple[int, ...], str]]
    """File name -> (images, height, width) or (labels,), and the check sum of the unpacked bytes."""


def _files(*sha256: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """The four files, with these check sums."""
    shapes = {
        "train-images-idx3-ubyte": (60_000, 28, 28),
        "train-labels-idx1-ubyte": (60_000,),
        "t10k-images-idx3-ubyte": (10_000, 28, 28),
        "t10k-labels-idx1-ubyte": (10_000,),
    }
    return {name: (shape, digest) for (name, shape), digest in zip(shapes.items(), sha256, strict=True)}


MNIST = ImageSource(
    "mnist",
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    _files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION = ImageSource(
    "fashion-mnist",
    "Fashion-MNIST",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    _files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)


def load_images(source: ImageSource, folder: Path | None = None, on_progress: Progress | None = None) -> RealData:
    """70,000 images, 28 x 28 grey values from 0 to 255; the 60,000 for training first.

    Parameters
    ----------
    source : where to download from, and the check sums of the unpacked files.
    folder : that holds (itself or in its folder of the source's name) the four idx files, plain or with the ending
        ``.gz``. None downloads them and keeps them in the cache.
    on_progress : called while downloading.
    """
    if folder is None:
        place = cache_folder() / "data" / source.name
        for name, (_, sha256) in source.files.items():
            url = f"{source.address.rstrip('/')}/{name}.gz"
            fetch(url, place / f"{name}.gz", sha256=sha256, on_progress=on_progress)
    else:
        place = checked_folder(folder)
        place = place / source.name if (place / source.name).is_dir() else place
    parts = [_read_idx(place, name, source) for name in source.files]
    rows = np.concatenate([part.reshape(len(part), -1) for part in parts if part.ndim == 3]).astype(np.float64)
    return RealData(rows, np.concatenate([part for part in parts if part.ndim == 1]).astype(np.int64), None)


def checked_folder(folder: Path) -> Path:
    """The folder, if there is one."""
    path = folder.expanduser()
    if not path.is_dir():
        raise InputError(
            f"{path} is not a folder; give one that holds the data (in the shell: --data FOLDER), or none to download "
            "them."
        )
    return path


def _read_idx(place: Path, name: str, source: ImageSource) -> Array:
    """The array of an idx file: a header of its type and shape, then its bytes."""
    path = next((path for path in (place / f"{name}.gz", place / name) if path.is_file()), None)
    if path is None:
        raise InputError(
            f"{place} holds no {name}, neither plain nor as .gz; {source.title} is the files "
            f"{', '.join(source.files)}. Without a folder (in the shell: --data FOLDER) they are downloaded."
        )
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); get it again.") from error
    shape, sha256 = source.files[name]
    told = f"{shape[0]:,} labels" if len(shape) == 1 else f"{shape[0]:,} images of {shape[1]} x {shape[2]}"
    header = bytes([0, 0, 8, len(shape)]) + b"".join(length.to_bytes(4, "big") for length in shape)  # 8: unsigned bytes
    if content[: len(header)] != header:
        begins = content[: len(header)].hex(" ", 4) or "nothing"
        raise InputError(
            f"{path} begins with {begins}, expected {header.hex(' ', 4)}, the idx header of {told}; is it a file of "
            f"{source.title}?"
        )
    expected = len(header) + int(np.prod(shape))
    if len(content) != expected:
        raise InputError(f"{path} holds {len(content):,} bytes, expected {expected:,} for {told}; get it again.")
    got = hashlib.sha256(content).hexdigest()
    if got != sha256:
        raise InputError(
            f"{path} is not {source.title}'s: expected sha256 {sha256} of the unpacked bytes, got {got}; get it again, "
            "or give the folder of the right data set (in the shell: --data FOLDER)."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)
