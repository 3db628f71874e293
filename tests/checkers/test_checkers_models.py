"""The lattice of models, and what anomalies say of it."""

from __future__ import annotations

import pytest
from checker_oracle import LATTICE, WEAKEST

from harness.errors import UsageError
from harness.protocols import consistency_models as models


def test_a_model_satisfies_what_the_lattice_puts_below_it() -> None:
    for line in filter(None, LATTICE.split("\n")):
        stronger, weaker = line.split(" > ")
        assert models.implied_by(stronger) > set(weaker.split())


def test_every_anomaly_rules_out_its_weakest_models_and_all_above() -> None:
    for name in sorted({name for row in WEAKEST.values() for name in row.split()}):
        weakest, above = models.ruled_out([name])

        assert set(weakest) == {m for m, row in WEAKEST.items() if name in row.split()}
        assert "strict-serializable" in {*weakest, *above}
        assert models.breaks(name, "strict-serializable")
        assert not any(models.breaks(name, m) for m in models.models() if m not in weakest + above)


def test_nothing_is_ruled_out_by_nothing() -> None:
    assert models.ruled_out([]) == ((), ())
    assert models.ruled_out(["some-liveness-trouble"]) == ((), ())


def test_a_model_follows_only_from_what_is_decided_and_not_ruled_out() -> None:
    assert not any(models.left_open(model, []) for model in models.models())
    for model in ("prefix", "read-atomic", "monotonic-atomic-view", "causal-cerone"):
        assert models.left_open(model, ["G-single-item"])
        assert not models.left_open(model, ["G-single-item-realtime"]), "serializable stands"
        assert not models.left_open(model, ["G1a"]), "it is ruled out itself"
    assert models.left_open("view-serializable", ["G0"])


def test_what_is_decided_by_its_anomalies_is_never_left_open() -> None:
    every = sorted({name for row in WEAKEST.values() for name in row.split()})

    assert not any(models.left_open(m, [name]) for m in models.DECIDED for name in every)
    assert all(models.breaks(name, m) for m in models.DECIDED for name in ("G0",))


def test_only_models_with_real_time_promise_it() -> None:
    promising = {m for m in models.models() if models.promises_real_time(m)}

    assert promising == {"strict-serializable", "strong-snapshot-isolation"}


def test_synonyms_are_known_and_others_are_refused_by_name() -> None:
    assert models.canonical("strong-serializable") == "strict-serializable"
    with pytest.raises(UsageError, match="unknown consistency model 'acid'"):
        models.canonical("acid")
