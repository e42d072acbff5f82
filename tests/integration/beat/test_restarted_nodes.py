"""Nodes that restart while no tick is due: beat looks at them nevertheless."""

from __future__ import annotations

import pytest

from celery_redlock.testing import Server
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import eventually
from tests.support.processes.beats import start_beats


def has_other_clients(node: Server) -> bool:
    with node.client() as client:
        return len(client.client_list()) > 1


@pytest.mark.long
def test_a_beat_without_due_ticks_sees_which_nodes_were_restarted(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    """If it saw that at its next tick only, it would count all guards from then."""
    nodes = new_nodes(3)
    project = new_project("ticking", nodes=nodes)
    [beat] = start_beats(project, 1, test_entries={"rare": {"crontab": "0 0 29 2 *"}})
    for node in nodes[:2]:
        node.restart()
        # Its loop would sleep for five minutes if nothing asked for less.
        eventually(lambda node=node: has_other_clients(node))  # type: ignore[misc]
    beat.ask_to_end()
    assert beat.wait_until_ended() == 0
    assert not beat.lines("tick publishing paused")
