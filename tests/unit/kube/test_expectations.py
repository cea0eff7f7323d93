"""What was done and not yet seen is remembered, and not for ever."""

import pytest
from msgspec.structs import replace

from kube_parts import ConfigMap, a_config_map
from orchestra.kube.cache import Cache
from orchestra.kube.expectations import Expectations
from orchestra.kube.objects import Key

A = Key("default", "a")


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.cache: Cache[ConfigMap] = Cache()
        self.expectations = Expectations(self.cache, clock=lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


def test_a_create_is_expected_until_it_is_born(world: World) -> None:
    world.expectations.expect_create("owner", A)
    assert world.expectations.unseen_creates("owner") == [A]
    assert world.expectations.satisfied("another owner")
    world.cache.put(a_config_map("a"))
    assert world.expectations.satisfied("owner")


def test_news_of_the_one_before_is_not_the_birth(world: World) -> None:
    world.cache.put(a_config_map("a", uid="old"))
    world.expectations.expect_create("owner", A)
    world.cache.put(a_config_map("a", uid="old", version=2))
    assert not world.expectations.satisfied("owner")
    world.cache.put(a_config_map("a", uid="new", version=3))
    assert world.expectations.satisfied("owner")


def test_a_create_that_found_it_there_waits_only_for_what_the_cache_does_not_know(world: World) -> None:
    world.expectations.expect_create("owner", A)
    world.expectations.found(A, "u")
    assert not world.expectations.satisfied("owner")
    world.cache.put(a_config_map("a"))
    world.expectations.expect_create("owner", A)
    world.expectations.found(A, "u")
    assert world.expectations.satisfied("owner")


def test_a_delete_is_seen_when_it_begins(world: World) -> None:
    world.cache.put(a_config_map("a"))
    world.expectations.expect_delete("owner", "u", A)
    assert not world.expectations.satisfied("owner")
    dying = a_config_map("a", version=2)
    world.cache.put(replace(dying, metadata=replace(dying.metadata, deletion_timestamp="2026-01-01T00:00:00Z")))
    assert world.expectations.satisfied("owner")
    world.expectations.expect_delete("owner", "u", A)
    assert world.expectations.satisfied("owner")


def test_a_delete_is_seen_when_it_is_gone_at_once(world: World) -> None:
    world.cache.put(a_config_map("a"))
    world.expectations.expect_delete("owner", "u", A)
    world.cache.remove(A)
    assert world.expectations.satisfied("owner")


def test_after_five_minutes_the_cache_is_believed(world: World) -> None:
    world.expectations.expect_create("owner", A)
    world.now = 100.0
    assert world.expectations.expire_in("owner") == 200.0
    world.now = 300.0
    assert world.expectations.satisfied("owner")
    assert world.expectations.expire_in("owner") is None


def test_a_gone_owner_expects_nothing(world: World) -> None:
    world.expectations.expect_create("owner", A)
    world.expectations.forget("owner")
    assert world.expectations.satisfied("owner")
    world.expectations.drop_create(A)
