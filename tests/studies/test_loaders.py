"""Loaders of the real data sets, on small files of the same kinds; and on the real ones where they are at hand."""

import gzip
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedgrem.errors import InputError
from fedgrem.studies.download import DownloadError
from fedgrem.studies.images import FASHION, MNIST, ImageSource, load_images
from fedgrem.studies.pen import PenSource, load_pen, table_digest, unpack_z
from fedgrem.studies.splits import assign_sites
from tests.studies.server import Server

REAL = Path(__file__).parents[3] / "shared" / "data"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real files are not in {REAL}")

# Two writers in the training half, one in the other.
FEATURES = np.arange(5 * 16).reshape(5, 16)
DIGITS = np.array([8, 2, 2, 0, 7])
WRITERS = np.array([1, 1, 2, 31, 31])
PEN_SMALL = PenSource("", table_digest(np.column_stack([FEATURES, DIGITS, WRITERS])))

IMAGES = {
    "train-images-idx3-ubyte": np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2),
    "train-labels-idx1-ubyte": np.array([5, 0, 4], dtype=np.uint8),
    "t10k-images-idx3-ubyte": np.full((1, 2, 2), 255, dtype=np.uint8),
    "t10k-labels-idx1-ubyte": np.array([7], dtype=np.uint8),
}


def idx(array):
    lengths = b"".join(length.to_bytes(4, "big") for length in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


SMALL = ImageSource(
    "mnist",
    "MNIST",
    "",
    {name: (array.shape, hashlib.sha256(idx(array)).hexdigest()) for name, array in IMAGES.items()},
)


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("FEDGREM_CACHE", str(tmp_path / "cache"))
    with Server() as server:
        yield server


def pack_z(data, most=16, *, block_mode=True, clear_after=None):
    """What Unix ``compress`` would write; checked against ``gzip -d`` when this test was written."""
    out = bytearray([0x1F, 0x9D, most | 0x80 * block_mode])
    first = {bytes([value]): value for value in range(256)}
    group = []

    def close_group(*, full):
        bits = sum(code << (i * width) for i, code in enumerate(group))
        out.extend(bits.to_bytes(width if full else (len(group) * width + 7) // 8, "little"))
        group.clear()

    def put(code):
        group.append(code)
        if len(group) == 8:
            close_group(full=True)

    words, n_words, width, n_codes, word = dict(first), 256 + block_mode, 9, 0, b""
    for value in data:
        longer = word + bytes([value])
        if longer in words:
            word = longer
            continue
        put(words[word])
        n_codes += 1
        # The reader learns a word one code later than the writer, and widens its codes by its own count.
        if n_words == 1 << width and width < most:
            if group:
                close_group(full=True)
            width += 1
        if n_words < 1 << most:
            words[longer] = n_words
            n_words += 1
        word = bytes([value])
        if n_codes == clear_after:
            put(256)
            if group:
                close_group(full=True)
            words, n_words, width, n_codes = dict(first), 257, 9, 0
    if word:
        put(words[word])
    if group:
        close_group(full=False)
    return bytes(out)


def uci_files():
    """UCI's four files, small."""
    files = {}
    for half, chosen in (("tra", slice(0, 3)), ("tes", slice(3, 5))):
        table = np.column_stack([FEATURES[chosen], DIGITS[chosen]])
        files[f"pendigits.{half}"] = "".join(", ".join(f"{cell:3d}" for cell in row) + "\n" for row in table)
        text = ".VERSION 1.0\n.COMMENT made 1998 in 2 parts\n.COORD X Y\n"
        for i, (digit, writer) in enumerate(zip(DIGITS[chosen], WRITERS[chosen], strict=True)):
            text += f'.SEGMENT DIGIT ? ? "{digit}"\n.COMMENT {digit} {writer if half == "tra" else writer - 30} {i}\n'
            text += ".PEN_DOWN\n 267 333\n 267 336\n.PEN_UP\n\n.DT 100\n"
        files[f"pendigits-orig.{half}"] = text
    return {name: text.encode() for name, text in files.items()}


def write_files(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def archive_of(files, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def with_packed_recordings(files):
    return {
        f"{name}.Z" if "orig" in name else name: pack_z(content) if "orig" in name else content
        for name, content in files.items()
    }


def assert_is_small_pen(data):
    np.testing.assert_array_equal(data.rows, FEATURES)
    np.testing.assert_array_equal(data.labels, DIGITS)
    np.testing.assert_array_equal(data.sites, WRITERS)
    assert data.rows.dtype == np.float64


def test_ucis_files_are_joined_whichever_way_they_come(tmp_path):
    files = uci_files()
    plain = write_files(tmp_path / "plain", files)
    packed = write_files(tmp_path / "packed" / "pendigits", with_packed_recordings(files)).parent
    zipped = write_files(tmp_path / "zipped", {})
    archive_of(with_packed_recordings(files), zipped / "pen+based+recognition+of+handwritten+digits.zip")
    for folder in (plain, packed, zipped):
        assert_is_small_pen(load_pen(folder, source=PEN_SMALL))


def test_our_joined_table_is_read_plain_and_packed(tmp_path):
    header = ",".join([*(f"f{j}" for j in range(1, 17)), "digit", "writer", "split"])
    table = np.column_stack([FEATURES, DIGITS, WRITERS])
    text = "\n".join([header, *(",".join(map(str, row)) + ",tra" for row in table)]).encode()
    plain = write_files(tmp_path / "plain", {"pendigits_with_writer.csv": text})
    packed = write_files(tmp_path / "packed", {"pendigits_with_writer.csv.gz": gzip.compress(text)})
    for folder in (plain, packed):
        assert_is_small_pen(load_pen(folder, source=PEN_SMALL))


def test_rows_that_do_not_belong_together_are_not_joined(tmp_path):
    files = uci_files()
    files["pendigits-orig.tra"] = files["pendigits-orig.tra"].replace(b".COMMENT 2 1 1", b".COMMENT 3 1 1")
    folder = write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"row 2 is the digit 2 in pendigits.tra but 3 in pendigits-orig.tra"):
        load_pen(folder, source=PEN_SMALL)


def test_halves_of_different_length_are_not_joined(tmp_path):
    files = uci_files()
    files["pendigits.tes"] = files["pendigits.tes"].splitlines(keepends=True)[0]
    folder = write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"pendigits.tes has 1 rows but pendigits-orig.tes has 2 recordings"):
        load_pen(folder, source=PEN_SMALL)


def test_a_changed_feature_is_found_by_the_check_sum_of_the_join(tmp_path):
    files = uci_files()
    files["pendigits.tra"] = files["pendigits.tra"].replace(b"15,", b"16,")
    folder = write_files(tmp_path, files)
    with pytest.raises(
        InputError, match=f"wrong check sum: expected {PEN_SMALL.sha256}, got [0-9a-f]+ of 5 joined rows"
    ):
        load_pen(folder, source=PEN_SMALL)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pendigits.tra", b"1, 2, 3\n", "has 3 columns, expected 16 features and the digit"),
        ("pendigits.tra", b"<html>\n", "is not a table of integers"),
        ("pendigits.tra", b"", "has 0 columns"),
        ("pendigits-orig.tra", b"", "has 3 rows but pendigits-orig.tra has 0 recordings"),
    ],
)
def test_a_bad_file_of_ucis_is_named(tmp_path, name, content, message):
    folder = write_files(tmp_path, uci_files() | {name: content})
    with pytest.raises(InputError, match=message):
        load_pen(folder, source=PEN_SMALL)


def test_an_empty_folder_is_told_what_to_hold(tmp_path):
    with pytest.raises(InputError, match=r"holds no Pen digits; expected, .*pendigits_with_writer.csv"):
        load_pen(tmp_path)
    with pytest.raises(InputError, match=r"holds no train-images-idx3-ubyte, neither plain nor as .gz"):
        load_images(MNIST, tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        load_images(FASHION, tmp_path / "none")


def test_pen_digits_are_downloaded_once_and_joined(server, tmp_path):
    server.files["pen.zip"] = archive_of(with_packed_recordings(uci_files()), tmp_path / "pen.zip").read_bytes()
    source = PEN_SMALL._replace(address=f"{server.url}/pen.zip")
    told = []
    for _ in range(2):
        assert_is_small_pen(load_pen(source=source, on_progress=lambda *done: told.append(done)))
    assert len(server.asked) == 1
    size = len(server.files["pen.zip"])
    assert told[-1] == ("pendigits.zip", size, size)


@pytest.mark.parametrize("content", ["another table", "no archive", "no recordings"])
def test_a_wrong_archive_is_not_kept(server, tmp_path, content):
    files = uci_files()
    if content == "another table":
        files["pendigits.tra"] = files["pendigits.tra"].replace(b"15,", b"16,")
    if content == "no recordings":
        del files["pendigits-orig.tes"]
    server.files["pen.zip"] = archive_of(files, tmp_path / "pen.zip").read_bytes()
    if content == "no archive":
        server.files["pen.zip"] = b"<html>"
    message = {
        "another table": "wrong check sum.*run the same command again",
        "no archive": "cannot be read",
        "no recordings": "holds no pendigits-orig.tes",
    }[content]
    with pytest.raises(InputError, match=message):
        load_pen(source=PEN_SMALL._replace(address=f"{server.url}/pen.zip"))
    assert list((tmp_path / "cache").rglob("*.zip")) == []


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("inside", ["", "mnist"])
def test_images_are_read_training_half_first(tmp_path, ending, inside):
    files = {name + ending: gzip.compress(idx(array)) if ending else idx(array) for name, array in IMAGES.items()}
    write_files(tmp_path / inside, files)
    data = load_images(SMALL, tmp_path)
    np.testing.assert_array_equal(data.rows, [*np.arange(12).reshape(3, 4), [255] * 4])
    np.testing.assert_array_equal(data.labels, [5, 0, 4, 7])
    assert data.rows.dtype == np.float64
    assert data.sites is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"\0\0\x0d" + content[3:], "begins with .*, expected 00000803 .*header of 3 images of 2 x 2"),
        (lambda content: content[:7] + b"\4" + content[8:], "begins with 00000803 00000004"),
        (lambda content: b"", "begins with nothing"),
        (lambda content: content[:-1], "holds 27 bytes, expected 28"),
        (lambda content: content[:-1] + b"\0", "is not MNIST's: expected sha256 .* of the unpacked bytes, got"),
    ],
)
def test_a_bad_idx_file_is_told_what_is_wrong_with_it(tmp_path, change, message):
    name = "train-images-idx3-ubyte"
    files = {name: idx(array) for name, array in IMAGES.items()}
    write_files(tmp_path, files | {name: change(files[name])})
    with pytest.raises(InputError, match=message):
        load_images(SMALL, tmp_path)


def test_a_cut_off_gzip_file_is_named(tmp_path):
    files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in IMAGES.items()}
    files["t10k-labels-idx1-ubyte.gz"] = files["t10k-labels-idx1-ubyte.gz"][:-6]
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.gz cannot be read .*get it again"):
        load_images(SMALL, tmp_path)


def test_images_are_downloaded_checked_unpacked_and_resumed(server, tmp_path):
    for name, array in IMAGES.items():
        server.files[f"mnist/{name}.gz"] = gzip.compress(idx(array), mtime=12345)
    source = SMALL._replace(address=f"{server.url}/mnist/")
    server.breaks = 20
    with pytest.raises(DownloadError, match="run the same command again to resume"):
        load_images(source)
    server.breaks = None
    names = set()
    data = load_images(source, on_progress=lambda name, done, total: names.add(name))
    assert data.labels.tolist() == [5, 0, 4, 7]
    assert names == set(IMAGES)
    assert server.asked[1] == ("/mnist/train-images-idx3-ubyte.gz", "bytes=20-")
    server.files.clear()
    assert load_images(source).labels.tolist() == [5, 0, 4, 7]


def test_rows_are_spread_evenly_at_random_and_the_same_by_seed():
    sites = assign_sites(1001, 10, seed=3)
    assert sorted(np.bincount(sites)[1:]) == [100] * 9 + [101]
    np.testing.assert_array_equal(sites, assign_sites(1001, 10, seed=3))
    assert (sites != assign_sites(1001, 10, seed=4)).mean() > 0.5
    assert (sites[:-1] != np.arange(1000) % 10 + 1).mean() > 0.5
    with pytest.raises(InputError, match="5 rows cannot be divided among 6 sites"):
        assign_sites(5, 6, seed=0)


@pytest.mark.parametrize("most", [16, 12, 10])
@pytest.mark.parametrize(("block_mode", "clear_after"), [(True, None), (True, 900), (False, None)])
def test_files_of_unix_compress_are_unpacked(most, block_mode, clear_after):
    random = np.random.default_rng(0)
    for size in (0, 1, 2, 500, 30_000):
        data = bytes(random.choice(list(b"0123456789 .\n"), size).tolist()) + b"a" * (size // 5)
        packed = pack_z(data, most, block_mode=block_mode, clear_after=clear_after)
        assert unpack_z(packed) == data


def test_what_unix_compress_wrote_is_unpacked():
    assert unpack_z(bytes.fromhex("1f9d9061c40404")) == b"abab"


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"PK\3\4", r"x.Z is not a .Z file: it begins with 50 4b 03"),
        (b"", "begins with nothing"),
        (b"\x1f\x9d\x91abc", "not known"),
        (b"\x1f\x9d\x90\xff\xff\xff", "x.Z is damaged after 0 bytes"),
    ],
)
def test_a_bad_z_file_is_named(packed, message):
    with pytest.raises(InputError, match=message):
        unpack_z(packed, "x.Z")


@needs_real
def test_the_real_pen_digits_have_44_writers_of_about_250_digits():
    data = load_pen(REAL)
    assert data.rows.shape == (10_992, 16)
    sizes = np.bincount(data.sites)[1:]
    assert len(sizes) == 44
    assert sorted(sizes)[:7] == [247, 249, 249, 249, 249, 249, 250]
    assert set(data.labels) == set(range(10))


@needs_real
@pytest.mark.parametrize("source", [MNIST, FASHION], ids=lambda source: source.name)
def test_the_real_images_are_70000_of_784_pixels(source):
    data = load_images(source, REAL)
    assert data.rows.shape == (70_000, 784)
    assert data.rows.max() == 255
    assert np.bincount(data.labels).min() > 6000


@needs_real
def test_one_data_set_is_not_taken_for_another():
    with pytest.raises(InputError, match="is not MNIST's"):
        load_images(MNIST, REAL / "fashion-mnist")
