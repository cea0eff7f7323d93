"""The cache, its indexes and its listeners never disagree."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_parts import ConfigMap, Seen, a_config_map
from orchestra.kube.cache import Cache, Change
from orchestra.kube.objects import Key, by_controller, by_namespace


def test_objects_are_found_by_the_uid_of_their_controller() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.put(a_config_map("a", owner="one"))
    owned = cache.index(by_controller)
    cache.put(a_config_map("b", owner="one"))
    cache.put(a_config_map("c", owner="two"))
    cache.put(a_config_map("d"))
    assert [item.metadata.name for item in owned.get("one")] == ["a", "b"]
    cache.put(a_config_map("a", version=2, owner="two"))
    assert [item.metadata.name for item in owned.get("one")] == ["b"]
    cache.remove(Key("default", "b"))
    assert list(owned.get("one")) == []
    assert set(owned.values()) == {"two"}
    assert cache.index(by_namespace).count("default") == 3


def test_another_uid_under_the_same_name_is_a_death_and_a_birth() -> None:
    cache: Cache[ConfigMap] = Cache()
    seen = Seen(cache)
    cache.put(a_config_map("a", uid="first"))
    cache.put(a_config_map("a", uid="second", version=2))
    assert seen.words == ["+a", "-a", "+a"]


def test_a_list_finds_deletions_by_absence_within_its_namespace() -> None:
    cache: Cache[ConfigMap] = Cache()
    for name in ("a", "b", "c"):
        cache.put(a_config_map(name))
    seen = Seen(cache)
    seen.words.clear()
    cache.replace([a_config_map("a"), a_config_map("b", version=5), a_config_map("d")], namespace="default")
    assert seen.words == ["-c", "~b", "+d"]
    cache.replace([], namespace="elsewhere")
    assert len(cache) == 3


def test_the_last_state_comes_with_a_deletion() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.put(a_config_map("a", x="1"))
    heard: list[Change[ConfigMap]] = []
    cache.listen(heard.append)
    cache.remove(Key("default", "a"), a_config_map("a", version=2, x="2"))
    assert heard[-1].old is not None
    assert heard[-1].old.data == {"x": "2"}


def test_a_late_listener_hears_of_what_is_there() -> None:
    cache: Cache[ConfigMap] = Cache()
    cache.put(a_config_map("a"))
    heard: list[Change[ConfigMap]] = []
    cache.listen(heard.append)
    assert [(change.key.name, change.initial) for change in heard] == [("a", True)]


def test_a_listener_that_fails_makes_nobody_deaf(caplog: pytest.LogCaptureFixture) -> None:
    cache: Cache[ConfigMap] = Cache()

    def fail(_: Change[ConfigMap]) -> None:
        raise RuntimeError("a bug")

    cache.listen(fail)
    seen = Seen(cache)
    with caplog.at_level(logging.ERROR):
        cache.put(a_config_map("a"))
    assert seen.words == ["+a"]
    assert "a listener failed on default/a" in caplog.text


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "remove"]), st.sampled_from(["x", "y", None])))
)
def test_an_index_is_what_a_search_would_find(steps: list[tuple[str, str, str | None]]) -> None:
    cache: Cache[ConfigMap] = Cache()
    owned = cache.index(by_controller)
    for version, (name, what, owner) in enumerate(steps):
        if what == "put":
            cache.put(a_config_map(name, version=version, owner=owner))
        else:
            cache.remove(Key("default", name))
        for uid in ("x", "y"):
            searched = {item.metadata.name for item in cache if item.metadata.controller_uid == uid}
            assert {item.metadata.name for item in owned.get(uid)} == searched
