"""What an app says about locking, in every way in which a Celery app is configured."""

from __future__ import annotations

import logging
import math
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.config import options, settings
from celery_redlock.config.settings import (
    KNOWN_SETTINGS,
    OPTION_SETTINGS,
    BeatSettings,
    Settings,
    beat_settings_from,
    settings_from,
)
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.calls import Colour
from tests.support.evidence import HostileInputs, hostile_inputs

NODES = ("redis://a", "redis://b", "redis://c")


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if nothing had been warned of yet, and nothing set from outside."""
    for name in ("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND", "CELERY_CONFIG_MODULE"):
        monkeypatch.delenv(name, raising=False)
    settings._warn_quorum_of_one.cache_clear()
    yield
    settings._warn_quorum_of_one.cache_clear()


def app(**kwargs: Any) -> Celery:
    return Celery("proj", set_as_current=False, **kwargs)


def by_update(values: Mapping[str, Any]) -> Celery:
    configured = app()
    configured.conf.update(values)
    return configured


def by_attributes(values: Mapping[str, Any]) -> Celery:
    configured = app()
    for name, value in values.items():
        setattr(configured.conf, name, value)
    return configured


def by_keyword(values: Mapping[str, Any]) -> Celery:
    return app(changes=dict(values))


def by_object(values: Mapping[str, Any]) -> Celery:
    configured = app()
    configured.config_from_object(types.SimpleNamespace(**values, LANGUAGE="en"))
    return configured


def by_mapping(values: Mapping[str, Any]) -> Celery:
    configured = app()
    configured.config_from_object(dict(values))
    return configured


def by_django_settings(values: Mapping[str, Any]) -> Celery:
    configured = app()
    upper = {f"CELERY_{name.upper()}": value for name, value in values.items()}
    configured.config_from_object(
        types.SimpleNamespace(**upper, REDLOCK_NODES="another package's", REDLOCK_FOO=1),
        namespace="CELERY",
    )
    return configured


def by_update_of_a_namespace(values: Mapping[str, Any]) -> Celery:
    configured = by_django_settings({})
    configured.conf.update(values)
    return configured


def by_lower_case_namespace(values: Mapping[str, Any]) -> Celery:
    configured = app()
    prefixed = {f"tasks_{name}": value for name, value in values.items()}
    configured.config_from_object(types.SimpleNamespace(**prefixed), namespace="tasks")
    return configured


every_form = pytest.mark.parametrize(
    "configure",
    [
        by_update,
        by_attributes,
        by_keyword,
        by_object,
        by_mapping,
        by_django_settings,
        by_update_of_a_namespace,
        by_lower_case_namespace,
    ],
)
Configure = Callable[[Mapping[str, Any]], Celery]


def read(**values: Any) -> Settings:
    return settings_from({"redlock_nodes": NODES, **values})


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(**values)
    return str(caught.value)


# --- where settings come from ---------------------------------------------------------------------


@every_form
def test_settings_are_found_however_the_app_is_configured(configure: Configure) -> None:
    found = settings_from(
        configure(
            {
                "redlock_nodes": list(NODES),
                "redlock_node_timeout": 0.2,
                "redlock_max_ttl": 120,
                "redlock_max_clock_skew": 0,
                "redlock_restart_guard": False,
                "redlock_key_prefix": "billing",
                "redlock_idle_timeout": 300,
                "redlock_max_connections": 4,
                "redlock_max_deliveries": 5,
                "redlock_show_arguments": True,
                "redlock_enabled": True,
                "redlock_ttl": 45,
                "redlock_on_conflict": "raise",
                "redlock_beat_scheduler": "some.where:Scheduler",
            }
        ).conf
    )

    assert found == Settings(
        nodes=NODES,
        node_timeout=0.2,
        max_ttl=120.0,
        max_clock_skew=0.0,
        restart_guard=False,
        key_prefix="billing",
        idle_timeout=300.0,
        max_connections=4,
        max_deliveries=5,
        show_arguments=True,
        enabled=True,
        option_defaults={"lock_ttl": 45, "lock_on_conflict": "raise"},
    )


@every_form
def test_unknown_settings_are_found_in_any_configuration(configure: Configure) -> None:
    configured = configure({"redlock_nodes": list(NODES), "redlock_tll": "secret"})

    with pytest.raises(ConfigurationError) as caught:
        settings_from(configured.conf)

    message = str(caught.value)
    assert "redlock_tll" in message.lower()
    known = ", ".join(sorted(KNOWN_SETTINGS))
    assert message.endswith(f"did you mean redlock_ttl? Known settings: {known}")
    assert "secret" not in message
    assert "; remove or rename it. " in refusal(redlock_qqqqqqqqqqqqqqqq=1)


@every_form
def test_none_is_as_good_as_not_set(configure: Configure) -> None:
    configured = configure(
        {"redlock_nodes": list(NODES), "redlock_ttl": None, "redlock_max_ttl": None}
    )

    found = settings_from(configured.conf)

    assert found.max_ttl == 60.0
    assert found.option_defaults == {}


@every_form
def test_the_last_word_of_the_user_counts_after_a_first_reading(configure: Configure) -> None:
    configured = configure({"redlock_nodes": list(NODES)})
    assert settings_from(configured.conf).max_ttl == 60.0

    configured.conf.redlock_max_ttl = 90

    assert settings_from(configured.conf).max_ttl == 90.0


def test_reading_writes_nothing() -> None:
    conf: Any = by_update({"redlock_nodes": list(NODES)}).conf
    conf.finalize()
    before = dict(conf.changes), len(conf.maps)

    settings_from(conf)

    assert (dict(conf.changes), len(conf.maps)) == before


def test_without_settings_the_documented_defaults_count() -> None:
    assert read() == Settings(
        nodes=NODES,
        node_timeout=0.05,
        max_ttl=60.0,
        max_clock_skew=1.0,
        restart_guard=None,
        key_prefix="redlock",
        idle_timeout=60.0,
        max_connections=16,
        max_deliveries=20,
        show_arguments=False,
        enabled=True,
        option_defaults={},
    )


def test_every_option_has_a_setting_of_its_name() -> None:
    assert {f"red{option}" for option in options.KNOWN_OPTIONS} == OPTION_SETTINGS


@pytest.mark.parametrize("name", ["REDLOCK_TTL", "CELERY_REDLOCK_TTL"])
def test_an_upper_case_setting_celery_never_reads_is_reported(name: str) -> None:
    configured = app()
    configured.config_from_object(types.SimpleNamespace(redlock_nodes=NODES, **{name: 5}))

    with pytest.raises(ConfigurationError, match=rf"^{name} is never read.*; write redlock_ttl$"):
        settings_from(configured.conf)
    configured.conf.redlock_ttl = 5
    assert settings_from(configured.conf).option_defaults == {"lock_ttl": 5}
    configured.config_from_object(types.SimpleNamespace(redlock_nodes=NODES, REDLOCK_FOO=5))
    assert settings_from(configured.conf).nodes == NODES, "a name that is no setting"


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        read().enabled = False  # type: ignore[misc]
    with pytest.raises(TypeError):
        read().option_defaults["lock_ttl"] = 5  # type: ignore[index]


# --- types and ranges -----------------------------------------------------------------------------

TIMES = ["redlock_node_timeout", "redlock_max_ttl", "redlock_max_clock_skew"]


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 10**12, 10**400])
def test_a_time_out_of_range_is_refused(name: str, value: float) -> None:
    assert f"{name} = {value!r} is out of range; give seconds" in refusal(**{name: value})


@pytest.mark.parametrize("name", ["redlock_node_timeout", "redlock_max_ttl"])
def test_no_time_at_all_is_refused(name: str) -> None:
    assert f"{name} = 0 is out of range" in refusal(**{name: 0})


def test_a_max_ttl_that_no_lease_could_have_is_refused() -> None:
    assert "redlock_max_ttl = 0.009 is out of range" in refusal(redlock_max_ttl=0.009)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [True, False, [], 1j, b"5"], ids=repr)
def test_a_time_that_is_no_number_is_refused(name: str, value: object) -> None:
    assert f"{name} = {value!r} is of type" in refusal(**{name: value})


@pytest.mark.parametrize("name", TIMES)
def test_a_number_in_quotes_is_told_so(name: str) -> None:
    assert f"{name} = '30' is of type str, not a number; write it without quotes" in refusal(
        **{name: "30"}
    )


@pytest.mark.parametrize("name", ["redlock_enabled", "redlock_restart_guard"])
@pytest.mark.parametrize("value", ["False", "", 0, 1, [], math.nan])
def test_a_flag_has_to_be_true_or_false(name: str, value: object) -> None:
    message = refusal(**{name: value})

    assert f"{name} = {value!r} is of type {type(value).__name__}; write True or False" in message


@pytest.mark.parametrize("value", [-1, 1.0, "3", True, []])
def test_a_count_has_to_be_a_whole_number(value: object) -> None:
    assert read(redlock_max_deliveries=0).max_deliveries == 0
    message = refusal(redlock_max_deliveries=value)

    assert f"redlock_max_deliveries = {value!r} is not a count; give a whole number" in message


@pytest.mark.parametrize("value", [0, -1, 1.0, "3", True])
def test_there_is_at_least_one_connection(value: object) -> None:
    assert read(redlock_max_connections=1).max_connections == 1
    message = refusal(redlock_max_connections=value)

    assert f"redlock_max_connections = {value!r} is not a count; give a whole number" in message


def test_an_idle_timeout_that_closes_what_is_in_use_is_refused() -> None:
    assert read(redlock_idle_timeout=1).idle_timeout == 1.0
    assert "redlock_idle_timeout = 0.9 is out of range" in refusal(redlock_idle_timeout=0.9)


@pytest.mark.parametrize("value", ["", "a{b", "a}b", "a b", "a\n", 5, b"a", ["a"]])
def test_a_prefix_that_would_break_keys_is_refused(value: object) -> None:
    assert f"redlock_key_prefix = {value!r} can't start a key" in refusal(redlock_key_prefix=value)


def test_a_prefix_of_a_str_enum_is_its_data() -> None:
    assert repr(read(redlock_key_prefix=Colour.RED).key_prefix) == "'red'"


def test_a_prefix_without_end_is_refused() -> None:
    for value in ("p", "p" * 256):
        assert read(redlock_key_prefix=value).key_prefix == value
    for value in ("p" * 257, "ä" * 129):
        assert "of at most 256 bytes" in refusal(redlock_key_prefix=value)


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[HostileInputs]:
    """Count what was tried."""
    with hostile_inputs("settings", request.session) as counts:
        yield counts


@given(st.sampled_from(sorted(KNOWN_SETTINGS)), anything)
def test_any_value_is_accepted_or_refused_by_its_settings_name(
    tried: HostileInputs, name: str, value: object
) -> None:
    tried.tried += 1
    try:
        read(**{name: value})
    except ConfigurationError as exc:
        tried.refuse()
        assert name in str(exc)  # noqa: PT017 - not raising is fine, too


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        list(NODES),
        NODES,
        "redis://a,redis://b,redis://c",
        "redis://a redis://b redis://c",
        " redis://a, redis://b,\n redis://c, ",
        [" redis://a", "redis://b ", "redis://c"],
    ],
    ids=repr,
)
def test_nodes_are_a_list_or_one_string(value: object) -> None:
    assert read(redlock_nodes=value).nodes == NODES


def test_a_comma_in_a_password_parts_nothing() -> None:
    nodes = ("redis://:p,w@a", "rediss://u:x y@b", "unix:///run/X", "redis://:p,w/x@c")

    assert read(redlock_nodes=" , ".join(nodes)).nodes == nodes


@pytest.mark.parametrize("value", ["", " , ", [], (), [""], ["redis://a", ""]], ids=repr)
def test_an_empty_list_of_nodes_is_no_reason_to_fall_back(value: object) -> None:
    with pytest.raises(ConfigurationError, match="redlock_nodes is empty"):
        settings_from({"redlock_nodes": value, "broker_url": "redis://broker"})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "redlock_nodes is of type int"),
        (b"redis://:pw@a", "redlock_nodes is of type bytes"),
        ({"redis://:pw@a"}, "redlock_nodes is of type set"),
        (["redis://:pw@a", 5], "redlock_nodes[1] is of type int"),
        ([b"redis://:pw@a"], "redlock_nodes[0] is of type bytes"),
        (["redis://:pw@a:1,redis://:pw@b:2"], "redlock_nodes[0] holds several URLs"),
        (["redis://:pw@a", "redis://b redis://:pw@c"], "redlock_nodes[1] holds several URLs"),
        ("redis://a,redis://:pw@b,redis://c,d", "redlock_nodes[2] has a comma in its host"),
        ("redis://:pw@a:1,b:2,c:3", "redlock_nodes[0] has a comma in its host"),
        (["redis://:pw@a,b"], "redlock_nodes[0] has a comma in its host"),
    ],
)
def test_nodes_of_a_wrong_type_are_refused_without_passwords(value: object, problem: str) -> None:
    message = refusal(redlock_nodes=value)

    assert message.startswith(f"{problem}; ")
    assert "pw" not in message


# --- no nodes -------------------------------------------------------------------------------------


URLS = [
    ("redis://host:1/2", "redis://host:1/2"),
    ("redis://", "redis://"),
    ("redis://u:p%40w@host", "redis://u:p%40w@host"),
    ("redis://host/0?visibility_timeout=5&x=y", "redis://host/0"),
    ("rediss://host?ssl_cert_reqs=CERT_NONE", "rediss://host?ssl_cert_reqs=none"),
    ("rediss://host?ssl_ca_certs=%2Fca.pem", "rediss://host?ssl_ca_certs=%2Fca.pem"),
    ("redis+socket:///run/redis.sock", "unix:///run/redis.sock"),
    ("redis+socket://:pw@/run/r.sock?virtual_host=/3", "unix://:pw@/run/r.sock?db=3"),
    ("unix:///run/redis.sock?db=3", "unix:///run/redis.sock?db=3"),
    ("valkey://host:1", "valkey://host:1"),
    ("redis://one/0;redis://two/0", "redis://one/0"),
]


@pytest.mark.parametrize(("url", "node"), [*URLS, (["redis://one", "redis://two"], "redis://one")])
@every_form
def test_without_nodes_a_redis_broker_is_locked_on(
    configure: Configure, url: object, node: str
) -> None:
    assert settings_from(configure({"broker_url": url}).conf).nodes == (node,)


@pytest.mark.parametrize(("url", "node"), URLS)
@every_form
def test_without_nodes_a_redis_result_backend_is_locked_on(
    configure: Configure, url: str, node: str
) -> None:
    assert settings_from(configure({"result_backend": url}).conf).nodes == (node,)


def test_the_result_backend_comes_before_the_broker() -> None:
    both = {"result_backend": "redis://results", "broker_url": "redis://broker"}

    assert settings_from(app(backend="redis://results", broker="redis://broker").conf).nodes == (
        settings_from(both).nodes
    )
    assert settings_from(both).nodes == ("redis://results",)


@pytest.mark.parametrize(
    "backend",
    [
        "rpc://", "db+sqlite:///x", "redis", "sentinel://a;sentinel://b", "redis://[", "cache+x://",
        [],
    ],
)  # fmt: skip
def test_another_result_backend_is_passed_over_for_the_broker(backend: object) -> None:
    found = settings_from({"result_backend": backend, "broker_url": "redis://broker"})

    assert found.nodes == ("redis://broker",)


def test_celery_s_environment_variables_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://from-environment")

    assert settings_from(app(broker="amqp://").conf).nodes == ("redis://from-environment",)


def test_without_any_redis_the_remedy_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"redlock_nodes is not set.*set it to the URLs"):
        settings_from(app(broker="amqp://", backend="rpc://").conf)


def test_locking_that_is_switched_off_needs_no_node(caplog: pytest.LogCaptureFixture) -> None:
    found = settings_from({"broker_url": "amqp://", "redlock_enabled": False})

    assert found.nodes == ()
    assert not found.enabled
    assert not caplog.records


def test_a_quorum_of_one_is_warned_of_once_without_the_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conf = by_update({"result_backend": "redis://:secret@host:1/2"}).conf

    for _ in range(3):
        settings_from(conf)

    (record,) = caplog.records
    assert record.name == "celery_redlock.config.settings"
    assert record.levelno == logging.WARNING
    assert "quorum of one" in record.getMessage()
    assert "result_backend" in record.getMessage()
    assert "node=host:1" in record.getMessage()
    assert "secret" not in caplog.text


def test_a_quorum_of_one_is_warned_of_again_as_soon_as_there_is_a_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beat makes its scheduler before it sets up its log."""
    conf = by_update({"result_backend": "redis://host:1/2"}).conf
    monkeypatch.setattr(settings.logger, "hasHandlers", lambda: False)
    settings_from(conf)
    monkeypatch.undo()
    for _ in range(2):
        settings_from(conf)
    assert len(caplog.records) == 2


def test_nodes_that_are_set_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    read(redlock_nodes=["redis://only"])

    assert not caplog.records


# --- beat -----------------------------------------------------------------------------------------


def test_beat_has_defaults() -> None:
    assert beat_settings_from({}) == BeatSettings(
        scheduler=None, misfire_grace_time=None, publishes_without_quorum=False
    )


@every_form
def test_beats_settings_are_found_however_the_app_is_configured(configure: Configure) -> None:
    found = beat_settings_from(
        configure(
            {
                "redlock_beat_scheduler": "django",
                "redlock_beat_misfire_grace_time": 300,
                "redlock_beat_on_unavailable": "publish",
            }
        ).conf
    )
    assert found == BeatSettings("django", 300.0, publishes_without_quorum=True)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("redlock_beat_scheduler", 5, " = 5 is not a class; give a class or its path"),
        (
            "redlock_beat_on_unavailable",
            "reschedule",
            ' = \'reschedule\' is unknown; write "wait", or "publish" to',
        ),
        ("redlock_beat_on_unavailable", True, ' = True is unknown; write "wait", or "publish" to'),
        (
            "redlock_beat_misfire_grace_time",
            "60",
            " = '60' is of type str, not a number; write it without quotes",
        ),
        # A tick is found some time after its slot: with none at all nothing would be published.
        (
            "redlock_beat_misfire_grace_time",
            0.9,
            " = 0.9 is out of range; give seconds, at least 1 and",
        ),
        ("redlock_beat_grace", 5, " is an unknown setting"),
    ],
)
def test_a_setting_of_beats_that_cannot_be_is_refused(
    name: str, value: object, problem: str
) -> None:
    assert beat_settings_from({"redlock_beat_misfire_grace_time": 1}).misfire_grace_time == 1.0
    with pytest.raises(ConfigurationError) as refused:
        beat_settings_from({name: value})
    assert str(refused.value).startswith(f"{name}{problem}")
