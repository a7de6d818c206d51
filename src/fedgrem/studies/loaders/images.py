"""MNIST and Fashion-MNIST from their idx files, checked unpacked.

MNIST is by LeCun, Cortes and Burges, Fashion-MNIST by Zalando (MIT licence).
"""

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgrem.errors import InputError
from fedgrem.studies.loaders.dataset import Progress, RealData, checked_folder, progress_of
from fedgrem.studies.loaders.download import cache_folder, fetch, unpacked_digest
from fedgrem.types import Array

IDX_BYTES = 0x08
"""The code of unsigned bytes in the header of an idx file."""


class ImageSource(NamedTuple):
    """Where images come from: four idx files, training half first."""

    name: str
    title: str
    address: str
    """Of the folder that holds the files with the ending ``.gz``."""
    shapes: Mapping[str, tuple[int, ...]]
    """File name -> (images, height, width) or (labels,)."""
    sha256: Mapping[str, str]
    """File name -> check sum of the unpacked bytes."""


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_SHAPES = {
    _TRAIN_IMAGES: (60_000, 28, 28),
    _TRAIN_LABELS: (60_000,),
    _TEST_IMAGES: (10_000, 28, 28),
    _TEST_LABELS: (10_000,),
}
MNIST = ImageSource(
    "mnist",
    "MNIST",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    _SHAPES,
    {
        _TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        _TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        _TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        _TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
FASHION = ImageSource(
    "fashion-mnist",
    "Fashion-MNIST",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    _SHAPES,
    {
        _TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        _TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        _TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        _TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
)


def load_mnist(
    folder: str | Path | None = None, *, source: ImageSource = MNIST, on_progress: Progress | None = None
) -> RealData:
    """70,000 handwritten digits, 28 x 28 grey values from 0 to 255; the 60,000 for training first.

    Parameters
    ----------
    folder : that holds (itself or in its folder ``mnist``) the four idx files, plain or with the ending ``.gz``. None
        downloads them (11 MB) and keeps them in the cache.
    source : where to download from, and the check sums of the unpacked files.
    on_progress : called while downloading.
    """
    return _load_images(folder, source, on_progress)


def load_fashion(
    folder: str | Path | None = None, *, source: ImageSource = FASHION, on_progress: Progress | None = None
) -> RealData:
    """70,000 pictures of clothes in ten kinds, in a folder ``fashion-mnist`` (30 MB); else as :func:`load_mnist`."""
    return _load_images(folder, source, on_progress)


def _load_images(folder: str | Path | None, source: ImageSource, on_progress: Progress | None) -> RealData:
    place = _download_images(source, on_progress) if folder is None else _image_folder(checked_folder(folder), source)
    parts = {name: _read_idx(_image_file(place, name, source), name, source) for name in source.shapes}
    images = [part for name, part in parts.items() if len(source.shapes[name]) == 3]
    labels = [part for name, part in parts.items() if len(source.shapes[name]) == 1]
    _, height, width = images[0].shape
    columns = tuple(f"row{i}_column{j}" for i in range(height) for j in range(width))
    rows = np.concatenate([part.reshape(len(part), -1) for part in images]).astype(np.float64)
    return RealData(rows, np.concatenate(labels).astype(np.int64), None, columns, source.name)


def _download_images(source: ImageSource, on_progress: Progress | None) -> Path:
    place = cache_folder() / "data" / source.name
    for name, sha256 in source.sha256.items():
        url = f"{source.address.rstrip('/')}/{name}.gz"
        fetch(
            url, place / f"{name}.gz", sha256=sha256, digest=unpacked_digest, on_progress=progress_of(on_progress, name)
        )
    return place


def _image_folder(folder: Path, source: ImageSource) -> Path:
    own = folder / source.name
    return own if own.is_dir() else folder


def _image_file(place: Path, name: str, source: ImageSource) -> Path:
    for path in (place / f"{name}.gz", place / name):
        if path.is_file():
            return path
    raise InputError(
        f"{place} holds no {name}, neither plain nor as .gz; {source.title} is the files {', '.join(source.shapes)}. "
        "Without a folder (in the shell: --data FOLDER) they are downloaded."
    )


def _read_idx(path: Path, name: str, source: ImageSource) -> Array:
    """The array of an idx file: a header of its type and shape, then its bytes."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); get it again.") from error
    shape = source.shapes[name]
    header = bytes([0, 0, IDX_BYTES, len(shape)]) + b"".join(length.to_bytes(4, "big") for length in shape)
    if content[: len(header)] != header:
        got = content[: len(header)].hex(" ", 4) or "nothing"
        raise InputError(
            f"{path} begins with {got}, expected {header.hex(' ', 4)}, the idx header of {_told(shape)}; is it a "
            f"file of {source.title}?"
        )
    expected = len(header) + int(np.prod(shape))
    if len(content) != expected:
        raise InputError(
            f"{path} holds {len(content):,} bytes, expected {expected:,} for {_told(shape)}; get it again."
        )
    got = hashlib.sha256(content).hexdigest()
    if got != source.sha256[name]:
        raise InputError(
            f"{path} is not {source.title}'s: expected sha256 {source.sha256[name]} of the unpacked bytes, got {got}; "
            "get it again, or give the folder of the right data set (in the shell: --data FOLDER)."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)


def _told(shape: tuple[int, ...]) -> str:
    return f"{shape[0]:,} labels" if len(shape) == 1 else f"{shape[0]:,} images of {shape[1]} x {shape[2]}"
