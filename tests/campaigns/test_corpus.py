"""The corpus: kept, merged, made smaller, and read whatever befell its files."""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from pathlib import Path

import pytest

from harness.campaigns.corpus import SUFFIX, Corpus, Entry, fewest_for_all
from harness.campaigns.coverage_log import decode, encode
from harness.plan.plan import load


def entry(seed: int, *features: str, cost_s: float = 1.0) -> Entry:
    return Entry(plan=load(None, {"seed": seed}), features=frozenset(features), cost_s=cost_s)


def test_what_is_added_is_read_again_and_each_file_is_a_plan(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus")
    one = entry(1, "vote | leader | ", "crash é | follower | ~", cost_s=2.5)
    corpus.add(one)

    assert Corpus.read(tmp_path / "corpus").entries == {one.key: one}
    assert load(tmp_path / "corpus" / f"{one.key}{SUFFIX}") == one.plan
    assert Corpus.read(tmp_path / "none").entries == {}


def test_two_corpora_are_merged_by_copying_and_equal_plans_are_one(tmp_path: Path) -> None:
    left, right = Corpus(tmp_path / "left"), Corpus(tmp_path / "right")
    for corpus, seeds in ((left, (1, 2)), (right, (2, 3))):
        for seed in seeds:
            corpus.add(entry(seed, f"f{seed}"))
    shutil.copytree(tmp_path / "left", tmp_path / "right", dirs_exist_ok=True)

    merged = Corpus.read(tmp_path / "right")

    assert {each.plan.seed for each in merged.entries.values()} == {1, 2, 3}
    assert len(merged.entries) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "strange", "renamed"])
def test_a_damaged_file_is_left_out_by_name_and_the_others_count(
    tmp_path: Path, damage: str
) -> None:
    corpus = Corpus(tmp_path)
    corpus.add(entry(1, "a"))
    corpus.add(entry(2, "b"))
    path = tmp_path / f"{entry(1, 'a').key}{SUFFIX}"
    content = path.read_bytes()
    if damage == "renamed":
        path = path.rename(tmp_path / f"other{SUFFIX}")
    else:
        path.write_bytes(
            {
                "cut": content[:-20],
                "flipped": content.replace(b"seed = 1", b"seed = 7"),
                "emptied": b"",
                "strange": b"\xff\xfe not a plan",
            }[damage]
        )

    found = Corpus.read(tmp_path)

    assert found.damaged == (path,)
    assert [each.plan.seed for each in found.entries.values()] == [2]
    assert path.exists()


def test_what_is_no_file_is_left_out_and_not_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "corpus"
    corpus, one = Corpus(root), entry(1, "a")
    corpus.add(one)
    os.mkfifo(root / f"fifo{SUFFIX}")
    (root / f"link{SUFFIX}").symlink_to(root / f"{one.key}{SUFFIX}")

    found = Corpus.read(root)

    assert found.entries == {one.key: one}
    assert {path.stem for path in found.damaged} == {"fifo", "link"}


def test_a_file_of_an_older_form_of_plans_is_a_plan_of_the_corpus(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add(entry(1, "a"))
    [path] = tmp_path.iterdir()
    # As it was written before plans had this key, which has its default here.
    text, mark, rest = path.read_bytes().partition(b"\n# reached: ")
    older = b"\n".join(line for line in text.split(b"\n") if not line.startswith(b"min_ok = "))
    assert older != text
    body = older + mark + rest.rpartition(b"# crc32: ")[0]
    path.unlink()
    file = tmp_path / f"{hashlib.sha256(older).hexdigest()[:16]}{SUFFIX}"
    file.write_bytes(body + f"# crc32: {zlib.crc32(body):08x}\n".encode())

    found = Corpus.read(tmp_path)

    assert not found.damaged
    assert found.entries == corpus.entries
    found.add(entry(2, "a", cost_s=0.5))
    assert found.minimise() == 1
    assert not file.exists()


def test_a_corpus_keeps_the_cheapest_plans_that_reach_everything(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    wide, dear, own = entry(1, "a", "b"), entry(2, "a", "b", cost_s=9.0), entry(3, "b", "c")
    for each in (wide, dear, own, entry(4, "b", cost_s=5.0)):
        corpus.add(each)

    assert corpus.minimise() == 2
    assert corpus.entries.keys() == {wide.key, own.key}
    assert Corpus.read(tmp_path).entries == corpus.entries
    assert corpus.minimise() == 0


def test_the_smaller_corpus_reaches_what_the_whole_did() -> None:
    entries = [
        entry(seed, *(f"f{n}" for n in range(40) if n % (seed + 2) == 0)) for seed in range(12)
    ]
    kept = fewest_for_all(entries)

    every = frozenset().union(*(each.features for each in entries))
    assert frozenset().union(*(each.features for each in kept)) == every
    assert len(kept) < len(entries)
    assert fewest_for_all(reversed(entries)) == kept


def test_features_are_the_same_bytes_in_any_order_and_other_bytes_are_refused() -> None:
    features = ["b | leader | ", "a |  | ~"]

    assert encode(features) == encode(reversed(features))
    assert decode(encode(features)) == set(features)
    assert decode(b"") == frozenset()
    for other in (b"\x00", encode(features)[:-4], b"{}"):
        with pytest.raises(ValueError, match="expected encoded features"):
            decode(other)
