"""Isolation: a frozen value that refuses what cannot be meant."""

from __future__ import annotations

import pickle

import pytest

from netless import Isolation


def test_defaults_are_the_contract() -> None:
    isolation = Isolation()
    assert not isolation.loopback
    assert not isolation.private
    assert isolation.unix_sockets
    assert not isolation.map_root
    assert not isolation.inherit_sockets
    assert isolation.mechanism == "auto"
    assert isolation.fallback is None


def test_is_frozen_hashable_and_picklable() -> None:
    isolation = Isolation(private=True)
    with pytest.raises(AttributeError):
        isolation.private = False
    assert {isolation: 1}[Isolation(private=True)] == 1
    assert pickle.loads(pickle.dumps(isolation)) == isolation


def test_is_keyword_only() -> None:
    with pytest.raises(TypeError):
        Isolation(True)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"loopback": 1}, TypeError),
        ({"unix_sockets": None}, TypeError),
        ({"mechanism": None}, TypeError),
        ({"mechanism": "magic"}, ValueError),
        ({"fallback": "none"}, ValueError),
        ({"loopback": True, "mechanism": "filter"}, ValueError),
        ({"loopback": True, "fallback": "filter"}, ValueError),
        ({"map_root": True, "mechanism": "filter"}, ValueError),
    ],
)
def test_refuses_what_cannot_be_meant(options: dict, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Isolation(**options)
