"""What a file that is no text begins with: it is named when it is refused."""

from __future__ import annotations

GZIP = b"\x1f\x8b"

# The bytes, what they begin, and how it becomes text.
_UNPACKED = (
    (GZIP, "gzip within gzip", "gunzip it once"),
    (b"BZh", "bzip2", "bunzip2 unpacks it"),
    (b"\xfd7zXZ\x00", "xz", "unxz unpacks it"),
    (b"(\xb5/\xfd", "zstd", "unzstd unpacks it"),
    (b'\x04"M\x18', "lz4", "unlz4 unpacks it"),
    (b"PK\x03\x04", "zip", "unzip unpacks it"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x unpacks it"),
    # Before those of 16 bits, which begin as it does.
    (b"\xff\xfe\x00\x00", "UTF-32", "iconv -f UTF-32 -t UTF-8 converts it"),
    (b"\x00\x00\xfe\xff", "UTF-32", "iconv -f UTF-32 -t UTF-8 converts it"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 converts it"),
    (b"{\x00", "UTF-16", "iconv -f UTF-16LE -t UTF-8 converts it"),
    (b"[\x00", "UTF-16", "iconv -f UTF-16LE -t UTF-8 converts it"),
    (b"\x00{", "UTF-16", "iconv -f UTF-16BE -t UTF-8 converts it"),
    (b"\x00[", "UTF-16", "iconv -f UTF-16BE -t UTF-8 converts it"),
    (b"JEPSEN", "Jepsen's own format", "firedrill check takes the history.edn beside it"),
    (b"PAR1", "Parquet", "firedrill check takes the directory of a run"),
    (b"SQLite format 3\x00", "SQLite", ""),
)
_TAR_MARK, _TAR_AT = b"ustar", 257


def format_of(beginning: bytes) -> str:
    """The name of the format that begins with ``beginning``, and how it becomes text; empty for one
    that is not known.
    """
    if beginning.startswith(_TAR_MARK, _TAR_AT):
        return "a tar archive (tar -x unpacks it)"
    for magic, name, remedy in _UNPACKED:
        if beginning.startswith(magic):
            return f"{name} ({remedy})" if remedy else name
    return ""
