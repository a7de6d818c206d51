"""Files packed by Unix ``compress`` (``.Z``), which Python's standard library cannot unpack."""

from fedgrem.errors import InputError

MAGIC = b"\x1f\x9d"
CLEAR = 256
"""In block mode, the code that says: forget all words."""


def unpack_z(packed: bytes, name: str = "the .Z file") -> bytes:
    """What a ``.Z`` file holds.

    Codes stand for words that were seen before; each code but the first adds a word. They have 9 bits at first and one
    more whenever the words outgrow them, up to a limit in the header. Codes of one width come in groups of eight; what
    is left of a group when the width changes, or the words are forgotten, is filling.

    Parameters
    ----------
    packed : the bytes of the file.
    name : of the file, for complaints.

    Examples
    --------
    >>> unpack_z(bytes.fromhex("1f9d9061c40404"))
    b'abab'
    """
    if packed[:2] != MAGIC or len(packed) < 3:
        raise InputError(f"{name} is not a .Z file: it begins with {packed[:3].hex(' ') or 'nothing'}; get it again.")
    flags = packed[2]
    block_mode = bool(flags & 0x80)
    most = flags & 0x1F
    if not 10 <= most <= 16 or flags & 0x60:  # tools do not agree on what a limit of 9 bits means
        raise InputError(f"{name} is packed in a way that is not known (flags {flags:#x}); unpack it by hand.")
    first_words = [bytes([value]) for value in range(256)] + [b""] * block_mode
    words, width, previous = first_words.copy(), 9, b""
    out: list[bytes] = []
    place = 3
    while place < len(packed):
        group = packed[place : place + width]
        place += width
        bits = int.from_bytes(group, "little")
        for _ in range(len(group) * 8 // width):
            code = bits & ((1 << width) - 1)
            bits >>= width
            if block_mode and code == CLEAR:
                words, width, previous = first_words.copy(), 9, b""
                break
            if code > len(words) or (code == len(words) and not previous):
                raise InputError(f"{name} is damaged after {len(b''.join(out)):,} bytes; get it again.")
            word = words[code] if code < len(words) else previous + previous[:1]
            out.append(word)
            if previous and len(words) < 1 << most:
                words.append(previous + word[:1])
            previous = word
            if len(words) == 1 << width and width < most:
                width += 1
                break
    return b"".join(out)
