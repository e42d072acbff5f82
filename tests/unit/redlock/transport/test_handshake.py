"""The handshake on a new connection, with a server that the test plays."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import hiredis
import pytest

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.protocol.scripts import ALL
from celery_redlock.redlock.transport import handshake
from celery_redlock.redlock.transport.connection import LOAD_SCRIPTS, NodeConnection
from celery_redlock.redlock.transport.handshake import Handshake, Server
from celery_redlock.redlock.transport.poller import new_poller
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import bulk

LOADED = [bulk("0" * 40)] * len(ALL)
MASTER = {"run_id": "abc", "uptime_in_seconds": "77", "role": "master"}


class Connection:
    """What is left of redis-py's once it is connected."""

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def disconnect(self) -> None:
        self._sock.close()


class Stage:
    """A handshake, and the server at the other end of its connection.

    Attributes:
        answers: What the server says, one after the other, each time it is waited for.
        meanwhile: What happens before that.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        ours, self.end = socket.socketpair()
        self.connection = NodeConnection(Connection(ours), 0.0, lambda why, **_: None)
        self.handshake = Handshake("the-node", self.clock, timeout=2.0)
        self.answers: list[bytes] = []
        self.meanwhile: Callable[[], object] = lambda: None
        poller = new_poller()

        class Poller:
            def register(self, descriptor: int, *, writing: bool) -> None:
                poller.register(descriptor, writing=writing)

            def wait(_, seconds: float) -> object:  # noqa: N805
                self.meanwhile()
                if self.answers:
                    self.end.sendall(self.answers.pop(0))
                found = poller.wait(0.0)
                if not found:
                    self.clock.move(seconds)
                return found

        monkeypatch.setattr(handshake, "new_poller", Poller)

    def says(self, *replies: bytes) -> None:
        """Answer the next questions at once."""
        self.answers.append(b"".join(replies))

    def is_described(self, **fields: str) -> None:
        """Answer as a server that INFO describes like this."""
        described = {"# Server": "", "# Replication": ""}
        for name, value in (MASTER | fields).items():
            section = "# Replication" if name in ("role", "master_replid") else "# Server"
            described[section] += f"{name}:{value}\r\n"
        self.says(*(bulk(f"{head}\r\n{lines}") for head, lines in described.items()), *LOADED)

    def identify(self) -> Server:
        return self.handshake.identify(self.connection)

    def heard(self) -> list[list[bytes]]:
        reader = hiredis.Reader()
        reader.feed(self.end.recv(1 << 20))
        return list(iter(reader.gets, False))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(monkeypatch)
    yield stage
    stage.connection.disconnect()
    stage.end.close()


def test_a_master_is_identified_and_has_every_script(stage: Stage) -> None:
    stage.is_described()
    assert stage.identify() == Server("abc", "77", 1000.0)
    assert stage.heard() == [
        [b"INFO", b"server"],
        [b"INFO", b"replication"],
        *([b"SCRIPT", b"LOAD", script.text.encode()] for script in ALL),
    ]


def test_a_path_that_is_no_utf_8_keeps_no_node_from_voting(stage: Stage) -> None:
    stage.is_described(executable="/opt/@/redis-server")
    stage.answers = [stage.answers[0].replace(b"@", b"\xff")]
    assert stage.identify() == Server("abc", "77", 1000.0)


def test_the_history_of_the_data_belongs_to_the_identity(stage: Stage) -> None:
    stage.is_described(master_replid="f" * 40)
    assert stage.identify().history == "f" * 40


def test_the_server_that_an_operator_admitted_is_told(stage: Stage) -> None:
    admission = Admission("prefix", ("a:1", "b:1"), "a:1", 60.0)
    stage.handshake = Handshake("the-node", stage.clock, 2.0, admission)
    stage.is_described()
    # After the other replies, as the network may cut them.
    stage.says(bulk(str(admission.admitting("new")[2])))
    assert stage.identify().admitted == "new"
    assert stage.heard()[-1] == [b"GET", b"prefix:admitted"]


def test_an_uptime_is_dated_after_its_reply(stage: Stage) -> None:
    def answer_late() -> None:
        stage.clock.move(1.5)
        stage.is_described()

    stage.meanwhile = answer_late
    assert stage.identify().answered_at == 1001.5


@pytest.mark.parametrize("role", ["slave", "sentinel", "x" * 30])
def test_a_server_that_is_no_master_is_refused(stage: Stage, role: str) -> None:
    stage.is_described(role=role)
    with pytest.raises(ConfigurationError, match=f"^node the-node is a {role[:20]}: "):
        stage.identify()


@pytest.mark.parametrize("field", ["redis_mode", "server_mode"])
def test_a_cluster_s_node_is_refused_by_either_field(stage: Stage, field: str) -> None:
    stage.is_described(**{field: "cluster"})
    stage.says(bulk("me"))
    stage.says(b"*0\r\n")
    with pytest.raises(ConfigurationError, match="in cluster mode and serves 0 of 16384"):
        stage.identify()


@pytest.mark.parametrize("field", ["redis_mode", "server_mode"])
def test_a_sentinel_is_refused_though_it_knows_no_scripts(stage: Stage, field: str) -> None:
    unknown = b"-ERR unknown command 'SCRIPT'\r\n"
    info = f"run_id:abc\r\nuptime_in_seconds:7\r\n{field}:sentinel\r\n"
    stage.says(bulk(info), bulk(""), *[unknown] * len(ALL))
    with pytest.raises(ConfigurationError, match=r"^node the-node is a Sentinel, which"):
        stage.identify()


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (bulk("redis_mode:sentinel\r\n"), "^node the-node is a Sentinel, which"),
        (bulk("redis_mode:standalone\r\n"), None),
        (b"-NOAUTH Authentication required.\r\n", "^NOAUTH Authentication required.$"),
    ],
)
def test_only_a_sentinel_is_refused_without_a_login(
    stage: Stage, said: bytes, refusal: str | None
) -> None:
    stage.says(said)
    if refusal is None:
        stage.handshake.refuse_sentinel(stage.connection)
    else:
        with pytest.raises((ConfigurationError, ConnectionError), match=refusal):
            stage.handshake.refuse_sentinel(stage.connection)
    assert stage.heard() == [[b"INFO", b"server"]]


def test_the_mode_is_read_from_no_other_field(stage: Stage) -> None:
    stage.is_described(config_file="sentinel", run_id="a:b")
    assert stage.identify().run_id == "a:b"


def test_questions_of_any_size_reach_the_server(stage: Stage) -> None:
    stage.connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    heard = bytearray()

    def read() -> None:
        heard.extend(stage.end.recv(1 << 20))
        if heard.endswith(LOAD_SCRIPTS):
            stage.is_described()

    stage.meanwhile = read
    # Too much for the socket at once.
    stage.connection.send(b"*1\r\n$4\r\nPING\r\n" * 20_000, 0, 0.0)
    assert stage.identify().run_id == "abc"


def slots(first: int, last: int, node_id: str) -> bytes:
    """Return one entry of CLUSTER SLOTS."""
    master = b"*3\r\n" + bulk("127.0.0.1") + b":7000\r\n" + bulk(node_id)
    return b"*3\r\n:%d\r\n:%d\r\n" % (first, last) + master


def test_a_cluster_of_one_node_with_all_slots_is_accepted(stage: Stage) -> None:
    stage.is_described(redis_mode="cluster")
    stage.says(bulk("me"))
    stage.says(b"*2\r\n", slots(0, 999, "me"), slots(1000, 16383, "me"))
    assert stage.identify().run_id == "abc"
    assert stage.heard()[-2:] == [[b"CLUSTER", b"MYID"], [b"CLUSTER", b"SLOTS"]]


def test_slots_of_other_nodes_do_not_count(stage: Stage) -> None:
    stage.is_described(redis_mode="cluster")
    stage.says(bulk("me"))
    stage.says(b"*2\r\n", slots(0, 999, "you"), slots(1000, 1999, "me"))
    with pytest.raises(ConfigurationError, match="serves 1000 of 16384"):
        stage.identify()


def test_an_info_without_the_identity_is_an_error(stage: Stage) -> None:
    stage.says(bulk("role:master\r\n"), bulk(""), *LOADED)
    with pytest.raises(ConnectionError, match="lacks run_id and uptime_in_seconds"):
        stage.identify()


def test_a_script_that_is_not_loaded_is_an_error(stage: Stage) -> None:
    stage.says(bulk(""), bulk(""), b"-NOPERM no permissions\r\n", *LOADED[1:])
    with pytest.raises(ConnectionError, match="NOPERM no permissions"):
        stage.identify()


def test_an_info_that_is_refused_is_an_error(stage: Stage) -> None:
    stage.says(b"-NOPERM no info\r\n", b"-NOPERM no info\r\n", *LOADED)
    with pytest.raises(ConnectionError, match="NOPERM no info"):
        stage.identify()


def test_a_server_that_does_not_answer_in_time_is_an_error(stage: Stage) -> None:
    stage.says(bulk("run_id:abc\r\n"))
    with pytest.raises(ConnectionError, match="Timeout: it did not answer within 2 s"):
        stage.identify()
    assert stage.clock.now() == 1002.0


def test_a_server_that_dribbles_has_no_more_time(stage: Stage) -> None:
    def dribble() -> None:
        stage.clock.move(0.5)
        stage.says(b"$")

    stage.meanwhile = dribble
    with pytest.raises(ConnectionError, match="did not answer within 2 s"):
        stage.identify()
    assert stage.clock.now() == 1002.0


def test_a_server_that_hangs_up_is_an_error(stage: Stage) -> None:
    stage.meanwhile = stage.end.close
    with pytest.raises(ConnectionError):
        stage.identify()


@pytest.mark.parametrize("said", ["ERR max number of clients reached", "DENIED protected" * 99])
@pytest.mark.parametrize("at_once", [True, False])
def test_words_before_a_hang_up_are_its_reason(stage: Stage, said: str, at_once: bool) -> None:
    stage.says(f"-{said}\r\n".encode())

    def meanwhile() -> None:
        is_said = not stage.answers
        if stage.answers:
            stage.end.sendall(stage.answers.pop())
        if at_once or is_said:
            stage.end.shutdown(socket.SHUT_WR)

    stage.meanwhile = meanwhile
    with pytest.raises(ConnectionError) as caught:
        stage.identify()
    assert str(caught.value) == said[:200]


def test_words_before_the_questions_are_the_reason_for_a_hang_up(stage: Stage) -> None:
    stage.end.sendall(b"-ERR max number of clients reached\r\n")
    stage.end.close()
    with pytest.raises(ConnectionError, match=r"^ERR max number of clients reached$"):
        stage.identify()


def test_more_replies_than_commands_are_an_error(stage: Stage) -> None:
    stage.is_described()
    stage.answers[0] += b":1\r\n"
    with pytest.raises(ConnectionError, match="more replies than"):
        stage.identify()
