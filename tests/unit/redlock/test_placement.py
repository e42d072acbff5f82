"""Placements differ if no majority of one must share a node with each of the other."""

from __future__ import annotations

import pytest

from celery_redlock.redlock.placement import Placement
from celery_redlock.redlock.task_lock import TaskLock

A, B, C, D = (letter * 40 for letter in "abcd")
Nodes = list[tuple[str, int, list[str]]]
THREE: Nodes = [("a:6379", 0, [A]), ("b:6379", 0, [B]), ("c:6379", 0, [C])]

RENEWED: Nodes = [(name, 0, [str(number) * 40]) for number, (name, _, _) in enumerate(THREE)]


def placed(nodes: Nodes, prefix: str = "redlock") -> Placement:
    return Placement.of(prefix, nodes)


def difference(here: Nodes, there: Nodes, *, is_fresh: bool = True) -> str:
    """Return how two placements differ, whichever is the other one."""
    found = placed(here).difference(placed(there), is_fresh=is_fresh)
    back = placed(there).difference(placed(here), is_fresh=is_fresh)
    assert bool(found) is bool(back)
    return found


@pytest.mark.parametrize(
    "there",
    [
        THREE[::-1],
        [("10.0.0.1:6379", 0, [A]), ("unix:/run/b", 0, [B]), ("localhost:6379", 0, [C])],
        # Not all are seen yet.
        [("a:6379", 0, []), ("b:6379", 0, []), ("c:6379", 0, [])],
        [("10.0.0.1:6379", 0, []), ("b:6379", 0, [B]), ("c:6379", 0, [C])],
        # Restarted: one of the two has seen the server before as well.
        [("10.0.0.1:6379", 0, [D, A]), ("b:6379", 0, [B]), ("c:6379", 0, [C])],
    ],
)
def test_the_same_nodes_do_not_differ_however_they_are_named(there: Nodes) -> None:
    assert difference(THREE, there) == ""


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (
            [*THREE[:2], ("d:6379", 0, [D])],
            "redlock_nodes, of 3 here and 3 there 2 are the same",
        ),
        (
            [*THREE, ("d:6379", 0, [D]), ("e:6379", 0, ["e" * 40])],
            "redlock_nodes, of 3 here and 5 there 3 are the same",
        ),
        (THREE[:1], "redlock_nodes, of 3 here and 1 there 1 are the same"),
        # Two that are not seen yet can't stand for three that are.
        (
            [("x:1", 0, []), ("y:1", 0, [D]), ("z:1", 0, ["e" * 40])],
            "redlock_nodes, of 3 here and 3 there 0 are the same",
        ),
        ([(name, 1, seen) for name, _, seen in THREE], "databases of the nodes"),
        ([*THREE[:2], ("10.0.0.1:6379", 2, [C])], "databases of the nodes"),
        # Such as localhost, on another host.
        (RENEWED, "servers at the same addresses"),
        ([*THREE[:2], ("c:6379", 0, [D])], "servers at the same addresses"),
        ([(name, 1, seen) for name, _, seen in RENEWED], "databases of the nodes"),
    ],
)
def test_other_nodes_differ_and_are_told_as_what_they_are(there: Nodes, found: str) -> None:
    assert difference(THREE, there) == found


def test_another_prefix_differs_whatever_the_nodes_are() -> None:
    here, there = placed(THREE), placed(THREE, "bank")
    assert here.difference(there, is_fresh=False) == "redlock_key_prefix"


def test_a_node_that_was_restarted_meanwhile_is_no_difference() -> None:
    renewed: Nodes = [*THREE[:2], ("c:6379", 0, [D])]
    assert difference(THREE, renewed, is_fresh=False) == ""
    # With no server in common these are other ones.
    assert difference(THREE, RENEWED, is_fresh=False) == "servers at the same addresses"
    assert difference(THREE[:1], RENEWED[:1], is_fresh=False) == "servers at the same addresses"


def test_a_placement_names_the_newest_server_of_each_node() -> None:
    nodes: Nodes = [("a:6379", 0, []), ("[::1]:6379", 15, [A, B])]
    assert str(placed(nodes, "bank:[1]/é")) == "bank:[1]/%C3%A9 [::1]:6379/15=bbbbbbbb a:6379/0="


def test_a_placement_may_be_written_by_others() -> None:
    read = Placement.read("redlock a=b:1/0=aaaaaaaa c:1/0=")
    assert read is not None
    assert [(node.address, node.servers) for node in read.nodes] == [
        ("a=b:1", ("aaaaaaaa",)), ("c:1", ()),
    ]  # fmt: skip
    node = " a:1/0="
    assert Placement.read("r" * (4000 - len(node)) + node)
    assert Placement.read("r" * (4001 - len(node)) + node) is None


def test_a_placement_is_read_as_it_was_written() -> None:
    for given in (THREE, [("unix:/run/my redis.sock", 15, []), ("[::1]:6379", 0, [A, B])]):
        text = str(placed(given, "bänk"))
        read = Placement.read(text)
        assert read is not None
        assert str(read) == text
        assert text.isascii()
        assert text.isprintable()
        assert read.name == placed(given, "bänk").name
        assert read.difference(placed(given, "bänk"), is_fresh=True) == ""


@pytest.mark.parametrize(
    "text",
    [
        None, 1, b"redlock a:1/0=", {}, [], "", " ", "redlock", "redlock a:1", "redlock a:1/x=",
        "redlock a:1/0=\n", "redlock a:1/0=\x1b[2J", "redlock a:1/0=a-b", "redlock  a:1/0=",
        "redlock a:1/0=" + "f" * 9, "redlock a:1/" + "1" * 10 + "=", "redlock\udc80 a:1/0=",
        "redlock" + " a:1/0=" * 65, "r" * 4000 + " a:1/0=",
    ],
)  # fmt: skip
def test_what_is_no_placement_is_not_read(text: object) -> None:
    assert Placement.read(text) is None


def test_a_lock_places_itself_by_every_server_that_it_has_seen() -> None:
    redlock = TaskLock(["redis://a", "redis://b", "redis://c"])
    assert str(redlock.placement) == "redlock a:6379/0= b:6379/0= c:6379/0="
    redlock.nodes[1].run_ids = (B,)
    assert str(redlock.placement) == "redlock a:6379/0= b:6379/0=bbbbbbbb c:6379/0="
    redlock.nodes[1].run_ids = (B, D)
    assert redlock.placement.nodes[1].servers == ("bbbbbbbb", "dddddddd")
    assert redlock.placement is redlock.placement


def test_the_placement_of_a_lock_has_no_password() -> None:
    redlock = TaskLock(
        ["redis://user:secret@a/3", "unix://user:secret@/run/b?db=4", "valkeys://:secret@C:1"],
        key_prefix="bank",
    )
    assert str(redlock.placement) == "bank a:6379/3= c:1/0= unix:/run/b/4="
    assert redlock.placement.name == "bank a:6379/3 c:1/0 unix:/run/b/4"
