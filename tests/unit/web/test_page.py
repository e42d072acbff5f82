"""What the page shows and does."""

from __future__ import annotations

import html
import re
import time
from datetime import datetime, timezone

import pytest
from celery import Celery
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from celery_redlock import singleton_task
from celery_redlock.operate.incidents import Incidents
from celery_redlock.operate.operator_log import read_log
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.web import actions, page
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active

from .conftest import ORIGIN, NewClient
from .test_guard import form_of

TIMES = "\N{MULTIPLICATION SIGN}"
HOSTILE = "bank.sync:<script>alert(1)</script>&quot;'\"{{7*7}}"


def without_breaks(markup: str) -> str:
    """Return markup without the places where a name may break."""
    return markup.replace("<wbr>", "")


def text_of(markup: str) -> str:
    """Return what a reader sees, without runs of blanks."""
    inline = re.sub(r"</?(span|code)\b[^>]*>", "", without_breaks(markup))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", inline)).split())


def test_it_shows_nodes_and_locks(three: Operated, redlock: TaskLock, reader: FlaskClient) -> None:
    redlock.acquire("bank.sync:42", 30, label="task-1")
    redlock.reserve("bank.report:may", 60, label="task-2")
    three[2].is_up = False
    shown = text_of(reader.get("/").text)
    assert "Locks work, but one more failed node stops all locks: 2 of 3 nodes vote." in shown
    assert "127.0.0.1:7002 down Connection refused" in shown
    assert "1 held, 1 reserved, 0 pending." in shown
    assert "bank.sync:42 held" in shown
    assert "task-1@" in shown.replace(" ", "")
    assert shown.count("2/3") == 2


def test_without_a_quorum_it_says_so(three: Operated, reader: FlaskClient) -> None:
    three[1].is_up = three[2].is_up = False
    response = reader.get("/")
    assert response.status_code == 200
    assert "No lock can be acquired: 1 of 3 nodes votes, 2 are needed." in text_of(response.text)
    assert "no quorum" in reader.get("/lock?key=k").text
    assert "unknown (1 of 3 answered)" in reader.get("/lock?key=k").text


def test_without_locks_it_says_so(reader: FlaskClient) -> None:
    shown = reader.get("/").text
    assert "Nothing is held." in shown
    assert "No tick is claimed." in shown


def test_without_a_right_to_scan_it_says_so(three: Operated, reader: FlaskClient) -> None:
    for number in range(3):
        three[number].refused["SCAN"] = "NOPERM no permissions"
    shown = text_of(reader.get("/").text)
    assert "At least 0 held, 0 reserved, 0 pending." in shown
    why = "0 of 3 nodes answered, 2 are needed (127.0.0.1:7000: NOPERM"
    assert f"Other locks may be held: {why}" in shown
    assert f"Other ticks may be claimed, or missed: {why}" in shown
    assert "Nothing is held." not in shown
    assert "No tick is claimed." not in shown


def test_a_key_without_an_expiry_never_expires(three: Operated, reader: FlaskClient) -> None:
    for number in range(3):
        three[number].execute(("SET", "redlock:{k}", "x"))
    assert "on 3 of 3 nodes; never expires (id" in text_of(reader.get("/lock?key=k").text)
    assert "never 3/3" in text_of(reader.get("/").text)


def test_many_locks_are_cut_with_a_note(
    redlock: TaskLock, new_client: NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_MOST_LOCKS", 5)
    for number in range(7):
        redlock.acquire(f"bank.sync:{number}", 30)
    client = new_client()
    shown = client.get("/").text
    assert "These are the 5 held longest of 7." in shown
    assert shown.count('data-label="Key"') == 5
    assert "bank.sync:6" not in shown
    found = client.get("/?q=sync:6").text
    assert "bank.sync:6" in found
    assert found.count('data-label="Key"') == 1


def test_the_filter_takes_text_and_kind(redlock: TaskLock, reader: FlaskClient) -> None:
    redlock.acquire("bank.sync:1", 30)
    redlock.reserve("bank.sync:2", 30)
    shown = reader.get("/live?q=sync&kind=reserved").text
    assert "bank.sync:2" in shown
    assert "bank.sync:1" not in shown
    assert "No lock matches the filter." in reader.get("/live?q=*").text


def test_the_filter_shows_what_is_chosen(redlock: TaskLock, reader: FlaskClient) -> None:
    for path, kind in (("/?q=sync&kind=reserved", "reserved"), ("/", None)):
        shown = reader.get(path).text
        options = re.findall(r'<option value="(\w*)"( selected)?>', shown)
        assert options == [
            (one, " selected" * (one == kind)) for one in ("", "held", "reserved", "pending")
        ]
        assert f'name="q" value="{"sync" if kind else ""}"' in shown
    shown = html.unescape(reader.get("/?q=sync&kind=reserved").text)
    assert 'data-url="/live?q=sync&kind=reserved"' in shown


def test_times_are_in_utc(three: Operated, redlock: TaskLock, reader: FlaskClient) -> None:
    three.pass_(0.25)
    redlock.acquire("k", 30)
    began = datetime.fromtimestamp(three.wall_us() // 1_000_000, timezone.utc)
    assert f'<time datetime="{began.isoformat()}"' in reader.get("/").text


def test_a_command_has_the_key_as_a_shell_takes_it(redlock: TaskLock, reader: FlaskClient) -> None:
    redlock.acquire("a b", 30)
    shown = html.unescape(reader.get("/lock?key=a b").text)
    assert "<code>celery -A bank redlock release 'a b'</code>" in shown


def test_a_key_with_markup_is_text(redlock: TaskLock, operator: FlaskClient) -> None:
    redlock.acquire(HOSTILE, 30, label="<b>task</b>")
    for path in ("/", "/lock", "/release"):
        response = operator.get(path, query_string={"key": HOSTILE, "q": HOSTILE})
        assert "<script>alert" not in response.text, path
        assert "<b>" not in response.text, path
        assert HOSTILE in html.unescape(response.text), path


def test_each_lock_names_worker_and_process(
    redlock: TaskLock, new_client: NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)
    Told(app, monkeypatch, {"celery@vm": [active("task-1")]})
    redlock.acquire("bank.sync:42", 30, label="task-1")
    for path in ("/", "/lock?key=bank.sync:42"):
        shown = text_of(new_client(app=app).get(path).text)
        assert re.search(r"celery@vm (\(pid 7\)|pid 7)", shown), path
        assert "(42,)" not in shown, path
        shown = text_of(new_client(app=app, shows_arguments=True).get(path).text)
        assert "(42,)" in shown, path


def test_if_no_worker_answers_the_page_says_so(
    redlock: TaskLock, new_client: NewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)
    Told(app, monkeypatch)
    redlock.acquire("bank.sync:42", 30, label="task-1")
    shown = text_of(new_client(app=app).get("/").text)
    assert "Workers and processes are unknown: no worker answered within 1 s." in shown
    shown = text_of(new_client(app=app).get("/lock?key=bank.sync:42").text)
    assert "Worker unknown: no worker answered within 1 s" in shown


def test_a_long_id_is_shortened_and_copied_whole(redlock: TaskLock, reader: FlaskClient) -> None:
    task_id = "5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51"
    redlock.acquire("bank.sync:42", 30, label=task_id)
    shown = reader.get("/").text
    assert "5b2c1f0…6f3a51" in text_of(shown)
    assert f'data-copy="{task_id}"' in shown
    assert 'data-copy="bank.sync:42"' in shown


@pytest.mark.parametrize(
    ("name", "most", "markup"),
    [
        ("bank.sync:42", 0, "bank.<wbr>sync:<wbr>42"),
        ("<b>.x", 0, "&lt;b&gt;.<wbr>x"),
        ("x" * 60, 0, "x" * 60),
        ("x" * 60, 64, f'<span class="whole">{"x" * 12}…{"x" * 11}</span>'),
        ("a.b/c", 3, '<span class="whole">a…c</span>'),
    ],
)
def test_a_name_breaks_at_its_separators(name: str, most: int, markup: str) -> None:
    assert page.breakable(name, most) == markup


@pytest.mark.parametrize("path", ["/", "/lock?key=bank.sync:42"])
def test_screen_readers_find_landmarks_and_headers(
    redlock: TaskLock, reader: FlaskClient, path: str
) -> None:
    redlock.acquire("bank.sync:42", 30)
    shown = reader.get(path).text
    assert shown.count("<main ") == shown.count("<h1 ") == 1
    assert '<a class="skip" href="#main">' in shown
    assert re.findall(r"<th (?!role)", shown) == []
    assert all("scope=" in header for header in re.findall(r"<th [^>]*>", shown))
    titles = re.findall(r'<section aria-labelledby="([^"]+)"', shown)
    assert len(titles) == shown.count("<section")
    assert all(f'id="{title}"' in shown for title in titles)


def test_claims_make_the_timeline(three: Operated, redlock: TaskLock, reader: FlaskClient) -> None:
    slot = "2026-01-01T00:00:00Z"
    redlock.reserve(f"%beat:bank@0123:close%3Aday:{slot}", 120, label="id")
    shown = without_breaks(reader.get("/").text)
    assert "close:day" in shown
    assert f"<title>{slot} published</title>" in shown
    assert 'class="published"' in shown


def test_a_missed_tick_is_red(three: Operated, redlock: TaskLock, reader: FlaskClient) -> None:
    assert "was missed" not in reader.get("/").text
    slot = "2026-01-01T00:00:00Z"
    redlock.reserve(f"%beat:bank@0123:close%3Aday:{slot}:missed", 86_400, label="no quorum")
    three.sleep(100)
    shown = without_breaks(reader.get("/").text)
    assert '<p class="banner bad"><strong>close:day</strong> was missed' in shown
    assert f"{slot}, no quorum, bank" in text_of(shown)


def test_of_many_missed_ticks_the_last_are_shown(redlock: TaskLock, reader: FlaskClient) -> None:
    for minute in range(12):
        key = f"%beat:bank@0123:close:2026-01-01T00:{minute:02}:00Z:missed"
        redlock.reserve(key, 86_400, label="id")
    shown = text_of(reader.get("/").text)
    assert shown.count(" ago: 2026") == 10
    assert "2 more were missed in the last day." in shown
    assert "00:11:00Z" in shown


def test_a_lock_is_shown_with_every_node_and_what_a_new_call_gets(
    three: Operated, redlock: TaskLock, new_client: NewClient
) -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)

    @singleton_task(app=app, name="bank.sync", lock_key="{n}")
    def sync(n: int) -> None: ...

    redlock.acquire("bank.sync:1", 30, label="task-1")
    three[1].is_up = False
    shown = text_of(new_client(app=app).get("/lock?key=bank.sync:1").text)
    assert "held by task-1@" in shown
    assert "127.0.0.1:7001 down Connection refused" in shown
    assert 'it ends as REVOKED, with DuplicateTask (lock_on_conflict="skip")' in shown
    assert "Release …" not in shown


def test_without_an_app_it_says_what_it_can_t_show(reader: FlaskClient) -> None:
    assert "Without an app these can't be shown" in reader.get("/").text


def test_incidents_are_listed_the_latest_first(three: Operated, new_client: NewClient) -> None:
    incidents = Incidents(app=None)
    at = three.wall_us() / 1e6
    for kind, ago in (("task-deduplicated", 9), ("task-lock-lost", 4)):
        event = {
            "name": "bank.sync",
            "uuid": "t-2",
            "key": "<i>",
            "hostname": "w1",
            "holder": "t-1",
        }
        incidents.note(event | {"type": kind, "timestamp": at - ago, "outcome": "skip"})
    shown = new_client(incidents=incidents).get("/").text
    assert "Events are not received now: not connected to the broker yet" in shown
    seen = text_of(shown)
    assert TIMES not in seen
    assert seen.index("4.0 s ago lost") < seen.index("9.0 s ago conflict skip <i>")
    assert "<i>" not in shown


def test_of_much_that_happened_the_latest_is_shown(
    three: Operated, redlock: TaskLock, new_client: NewClient
) -> None:
    incidents, at = Incidents(app=None), three.wall_us() / 1e6
    for number in range(21):
        event = {"type": "task-deduplicated", "name": "bank.sync", "key": f"key-{number}"}
        incidents.note(event | {"uuid": "t-1", "timestamp": at - 60 + number})
    for number in range(31):
        redlock.reserve(f"%beat:bank@0:entry-{number:02}:2026-01-01T00:00:00Z", 120, label="id")
    for number in range(201):
        redlock.acquire(f"lock-{number}", 30)
    shown = text_of(new_client(incidents=incidents).get("/").text)
    assert shown.count("conflict key-") == 20
    assert "key-20" in shown
    assert "1 more entries are not shown." in shown
    assert "entry-29" in shown
    assert "These are the 200 held longest of 201." in shown


def test_repeated_incidents_are_one_row(three: Operated, new_client: NewClient) -> None:
    incidents, at = Incidents(app=None), three.wall_us() / 1e6
    event = {"type": "task-deduplicated", "name": "bank.sync", "key": "bank.sync:42"}
    for number in range(12):
        incidents.note(event | {"uuid": f"t-{number}", "timestamp": at - 60 + number})
    shown = text_of(new_client(incidents=incidents).get("/").text)
    since = time.strftime("%H:%M UTC", time.gmtime(at - 60))
    assert re.search(rf"49\.0 s ago ?{TIMES}12 since {since}", shown)
    assert shown.count("conflict bank.sync:42") == 1


def test_a_lock_is_released_after_a_confirmation(redlock: TaskLock, operator: FlaskClient) -> None:
    redlock.acquire("bank.sync:1", 30, label="task-1")
    assert "Release …" in operator.get("/lock?key=bank.sync:1").text
    assert "its task may be running" in operator.get("/release?key=bank.sync:1").text
    assert redlock.read_holder("bank.sync:1")
    response = operator.post("/release", data=form_of(operator, "bank.sync:1"), headers=ORIGIN)
    assert "bank.sync:1 is released." in response.text
    assert redlock.read_holder("bank.sync:1") is None


def test_a_release_on_the_page_is_recorded_with_its_reason(
    three: Operated, redlock: TaskLock, operator: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "operator", lambda: "alice@ops")
    redlock.acquire("k", 30, label="task-1")
    assert 'name="reason"' in operator.get("/release?key=k").text
    form = form_of(operator, "k") | {"reason": "it hangs"}
    operator.post("/release", data=form, headers=ORIGIN)
    with three.target().nodes() as nodes:
        [action], _ = read_log(three.target(), nodes)
    assert (action.author, action.key, action.reason, action.result) == (
        "the page of alice@ops", "k", "it hangs", "released"
    )  # fmt: skip


def test_a_lock_of_another_holder_by_now_is_kept(redlock: TaskLock, operator: FlaskClient) -> None:
    lease = redlock.acquire("k", 30, label="task-1")
    form = form_of(operator, "k")
    redlock.release(lease)
    assert isinstance(redlock.acquire("k", 30, label="task-2"), Lease)
    for expected in (form, {name: form[name] for name in ("csrf", "key")}):
        response = operator.post("/release", data=expected, headers=ORIGIN)
        assert response.status_code == 409
        assert "another holder" in response.text
    assert redlock.read_holder("k")


@pytest.mark.parametrize("key", ["a\nb", "a\r\nb", "a&b=c", "é"])
def test_any_key_is_released(redlock: TaskLock, operator: FlaskClient, key: str) -> None:
    redlock.acquire(key, 30)
    page = operator.get("/release", query_string={"key": key}).text.split("<main ")[1]
    assert submitted(operator, page).status_code == 200
    assert not redlock.read_holder(key)


def submitted(client: FlaskClient, page: str) -> TestResponse:
    """Send the form of a confirmation as browsers do, to which each line break is CR and LF."""
    [action] = re.findall(r'<form method="post" action="([^"]+)" class="action">', page)
    sent = re.findall(r'name="(\w+)" value="([^"]*)"', page)
    form = {name: re.sub("\r\n|\n", "\r\n", html.unescape(value)) for name, value in sent}
    return client.post(html.unescape(action), data=form, headers=ORIGIN)


def test_a_done_mark_is_deleted(redlock: TaskLock, operator: FlaskClient) -> None:
    redlock.release(redlock.acquire("k", 30), done="task-1")
    shown = operator.get("/lock?key=k").text
    [link] = re.findall(r'href="(/release\?[^"]+)"', shown)
    confirmation = operator.get(html.unescape(link)).text.split("<main ")[1]
    assert submitted(operator, confirmation).status_code == 200
    assert not re.findall(r'href="/release', operator.get("/lock?key=k").text)


def test_without_a_quorum_a_release_is_reported_as_failed(
    three: Operated, redlock: TaskLock, operator: FlaskClient
) -> None:
    redlock.acquire("k", 30)
    form = form_of(operator, "k")
    three[0].is_up = three[1].is_up = False
    response = operator.post("/release", data=form, headers=ORIGIN)
    assert response.status_code == 503
    assert "Not done" in response.text


def test_nothing_to_release_is_a_page_that_says_so(operator: FlaskClient) -> None:
    assert operator.get("/release?key=k").status_code == 404
