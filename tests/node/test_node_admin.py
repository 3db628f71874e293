"""What the admin command says to who asks it for what can't be."""

from __future__ import annotations

import sys

import pytest

from clusters.reference.node.admin import main


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["127.0.0.1:99999"], "the port 1 to 65535"),
        (["127.0.0.1:0"], "the port 1 to 65535"),
        (["127.0.0.1"], "the address must be HOST:PORT"),
        (["127.0.0.1:1", "--key", ""], "the key must have a byte at least"),
        (["127.0.0.1:1", "--key", "zz"], "the key must be hexadecimal"),
    ],
)
def test_an_address_or_a_key_that_can_not_be_is_a_mistake_of_usage(
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["admin", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
