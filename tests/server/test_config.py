import ast
from pathlib import Path

import pytest

import headrace
from headrace.server.config import Address, SettingsError, client, load
from headrace.server.options import OPTIONS

EMPTY: dict[str, str] = {}


def toml(folder: Path, text: str) -> str:
    path = folder / "headrace.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_those_the_documentation_promises() -> None:
    options, broker, _ = load(environ=EMPTY)
    assert options.data == Path("./.headrace")
    assert (str(options.kafka), str(options.http)) == ("127.0.0.1:9092", "127.0.0.1:8080")
    assert (options.redis, options.advertise, options.maxmemory) == (None, None, None)
    assert options.fsync == "no"
    assert broker.num_partitions == 1


def test_a_flag_overrides_the_environment_that_overrides_the_file_and_the_default(tmp_path: Path) -> None:
    path = toml(tmp_path, 'data = "file"\nfsync = "always"\nlog-level = "debug"\nhttp = "127.0.0.1:1"\n')
    environ = {"HEADRACE_DATA": "environment", "HEADRACE_FSYNC": "no"}
    options, _, _ = load({"data": "flag", "fsync": None}, config=path, environ=environ)
    assert options.data == Path("flag")
    assert options.fsync == "no"
    assert options.log_level == "debug"
    assert options.kafka.port == 9092


def test_broker_settings_have_the_same_precedence(tmp_path: Path) -> None:
    path = toml(tmp_path, "[set]\nnum.partitions = 2\ngroup.max.size = 10\nauto.create.topics.enable = false\n")
    environ = {"HEADRACE_SET": "num.partitions=3 group.max.size=11"}
    _, broker, _ = load(sets=["num.partitions=4"], config=path, environ=environ)
    assert (broker.num_partitions, broker.group_max_size) == (4, 11)
    assert broker.auto_create_topics_enable is False


def test_the_file_may_be_named_by_the_environment_and_quote_its_keys(tmp_path: Path) -> None:
    path = toml(tmp_path, '[set]\n"num.partitions" = "5"\n')
    _, broker, _ = load(environ={"HEADRACE_CONFIG": path})
    assert broker.num_partitions == 5


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("16777216", 16 << 20),
        ("20480kb", 20 << 20),
        ("512mb", 512 << 20),
        ("4GB", 4 << 30),
        ("20m", 20 * 10**6),
    ],
)
def test_memory_is_written_as_redis_writes_it(text: str, size: int) -> None:
    assert load({"maxmemory": text}, environ=EMPTY)[0].maxmemory == size


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"kafka": "9092"}, "--kafka 9092: expected HOST:PORT"),
        ({"http": "localhost:70000"}, "--http localhost:70000: expected HOST:PORT"),
        ({"fsync": "everysec"}, "--fsync everysec: expected one of no, always"),
        ({"redis": "localhost:6379"}, "--redis localhost:6379: expected a URL like redis://"),
        ({"maxmemory": "half"}, "--maxmemory half: expected a size like 512mb"),
        ({"maxmemory": "4"}, "--maxmemory 4: expected at least 16mb, or 0 for no limit, found '4': is it the unit?"),
        ({"log-level": "loud"}, "--log-level loud: expected one of debug"),
        ({"data": ""}, "--data : expected a directory"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(flags: dict[str, str | None], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ=EMPTY)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("num.partitions", "--set num.partitions: expected KEY=VALUE"),
        ("num.partition=3", "--set: unknown broker setting num.partition, did you mean num.partitions?"),
        ("num.partitions=0", "--set: num.partitions=0: expected at least 1, found 0"),
        ("log.cleanup.policy=compact", "--set: log.cleanup.policy=compact: streams of the OCI API and native topics"),
    ],
)
def test_a_wrong_broker_setting_is_refused(pair: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(sets=[pair], environ=EMPTY)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("option", "text", "instead"),
    [
        ("fsync", "always", "its own appendfsync counts"),
        ("maxmemory", "4gb", "its own maxmemory counts"),
        ("valkey", "/usr/bin/valkey-server", "none is started"),
        ("brokers", "2", "start each by itself"),
    ],
)
def test_settings_of_the_embedded_valkey_are_refused_with_an_external_redis(
    tmp_path: Path, option: str, text: str, instead: str
) -> None:
    redis = {"redis": "redis://localhost"}
    variable = f"HEADRACE_{option.upper()}"
    path = toml(tmp_path, f'{option} = "{text}"\n')
    for where, flags, config, environ in (
        (f"--{option} {text}", {option: text} | redis, None, EMPTY),
        (f"{variable}={text}", redis, None, {variable: text}),
        (f'{option} = "{text}" in {path}', redis, path, EMPTY),
    ):
        with pytest.raises(SettingsError) as caught:
            load(flags, config=config, environ=environ)
        assert str(caught.value) == f"{where} is about the embedded Valkey: with --redis {instead}"


def test_what_is_so_by_default_may_be_said_over_a_redis_too() -> None:
    options, _, _ = load({"redis": "redis://localhost", "fsync": "no", "brokers": "1"}, environ=EMPTY)
    assert (options.redis, options.fsync, options.brokers) == ("redis://localhost", "no", 1)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingsError, match="lower one or raise the other"):
        load(sets=["group.min.session.timeout.ms=9", "group.max.session.timeout.ms=8"], environ=EMPTY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta = 'x'", "unknown option dta in {path}: did you mean data?"),
        ("[set]\nnum.partition = 1", "{path}: unknown broker setting num.partition"),
        ("[set]\nnum.partitions = [1]", "num.partitions in {path}: expected one value, found list"),
        ("set = 1", "set in {path}: expected a table"),
        ("[kafka]\nhost = 'x'", "kafka in {path}: expected one value"),
        ("fsync = 'maybe'", 'fsync = "maybe" in {path}: expected one of'),
        ("=", "{path} is not a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_naming_it(tmp_path: Path, text: str, message: str) -> None:
    path = toml(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(config=path, environ=EMPTY)
    assert str(caught.value).startswith(message.format(path=path))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot read the configuration file /nowhere: No such file"):
        load(config="/nowhere", environ=EMPTY)


def test_an_unknown_variable_is_refused_with_a_near_one() -> None:
    with pytest.raises(SettingsError, match="variable HEADRACE_KAFKAA: did you mean HEADRACE_KAFKA"):
        load(environ={"HEADRACE_KAFKAA": "x"})


def test_the_variables_of_a_kubernetes_service_are_not_options() -> None:
    load(
        environ={
            "HEADRACE_PORT": "tcp://10.0.0.1:9092",
            "HEADRACE_SERVICE_HOST": "10.0.0.1",
            "HEADRACE_SERVICE_PORT_KAFKA": "9092",
            "HEADRACE_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.1",
        }
    )


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_has_its_variable(option: object) -> None:
    known = next(each for each in OPTIONS if each is option)
    assert known.variable == "HEADRACE_" + known.field.upper()
    if known.default is not None:
        load(environ={known.variable: known.default})


def test_addresses_of_both_families() -> None:
    assert Address.parse("[::1]:80") == Address("::1", 80)
    assert str(Address("::1", 80)) == "[::1]:80"
    assert str(Address.parse("example.org:0")) == "example.org:0"
    for wrong in ("::1:80", "host", "host:", ":80", "a b:1"):
        with pytest.raises(ValueError, match="expected HOST:PORT"):
            Address.parse(wrong)


def test_clients_find_the_server_by_the_environment() -> None:
    assert client(environ=EMPTY).bootstrap == "127.0.0.1:9092"
    assert client(environ={"HEADRACE_BOOTSTRAP": "h:1"}).bootstrap == "h:1"


def test_listener_settings_do_not_apply_to_clients() -> None:
    told = client(environ={"HEADRACE_KAFKA": "127.0.0.1:0"})
    assert told.bootstrap == "127.0.0.1:9092"
    assert "clients read HEADRACE_BOOTSTRAP" in told.bootstrap_where
    load(environ={"HEADRACE_BOOTSTRAP": "h:1", "HEADRACE_PROFILE": "p", "HEADRACE_KAFKA": "127.0.0.1:0"})


def reads_environment(path: Path) -> list[int]:
    """Lines on which a file looks into the environment; setting a variable for a child process is no reading."""
    tree = ast.parse(path.read_text())
    writes = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"getenv", "environ"} and id(node) not in writes
    ]


def test_only_config_reads_the_environment() -> None:
    """Two modules look variables of Headrace's up in it: the server's and the clients', and what Spark needs of it.

    The test fixture, `pipeline run` and `archive` hand it on to a child process; `check` looks up what a user's
    project names.
    """
    root = Path(headrace.__file__).parent
    pipelines = {root / "spark" / "pipelines" / name for name in ("check.py", "run.py")}
    parents = {root / "testing" / "process.py", root / "cli" / "archive" / "supervisor.py"}
    allowed = {root / "server" / "config.py", root / "text" / "environment.py"} | parents | pipelines
    found = {str(path): reads_environment(path) for path in root.rglob("*.py") if path not in allowed}
    assert {path: lines for path, lines in found.items() if lines} == {}
