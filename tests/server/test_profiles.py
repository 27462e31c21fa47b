from pathlib import Path

import pytest

from headrace.server.config import SettingsError, client, profiles_file

Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": "/nonexistent"}


def write(environment: Environment, text: str, mode: int = 0o600) -> Path:
    path = profiles_file(environment)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


TWO = """
[default]
bootstrap = "laptop:9092"
http = "https://laptop"

[staging]
bootstrap = "staging:9092"
username = "jane"
password = "secret"
redis = "redis://staging"
"""


def test_a_variable_overrides_a_profile_that_overrides_the_default(environment: Environment) -> None:
    assert client(environ=environment).bootstrap == "127.0.0.1:9092"
    write(environment, TWO)
    assert client(environ=environment).bootstrap == "laptop:9092"
    assert client(environ=environment).http == "https://laptop"
    staging = client(environ=environment | {"HEADRACE_PROFILE": "staging"})
    assert (staging.bootstrap, staging.bootstrap_where) == ("staging:9092", "profile staging")
    assert (staging.username, staging.password, staging.redis) == ("jane", "secret", "redis://staging")
    over = client(environ=environment | {"HEADRACE_PROFILE": "staging", "HEADRACE_BOOTSTRAP": "h:1"})
    assert (over.bootstrap, over.bootstrap_where, over.username) == ("h:1", "HEADRACE_BOOTSTRAP", "jane")
    assert client("default", environment | {"HEADRACE_PROFILE": "staging"}).bootstrap == "laptop:9092"


def test_it_lies_where_others_lay_theirs() -> None:
    assert profiles_file({"HOME": "/home/me"}) == Path("/home/me/.config/headrace/profiles.toml")
    assert profiles_file({"HOME": "/home/me", "XDG_CONFIG_HOME": "/etc/me"}) == Path("/etc/me/headrace/profiles.toml")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_password_that_others_may_read_is_refused(environment: Environment, mode: int) -> None:
    path = write(environment, TWO, mode)
    with pytest.raises(SettingsError, match=rf"others may read it \(mode {mode:04o}\): chmod 600 {path}"):
        client(environ=environment)
    write(environment, '[default]\nbootstrap = "h:1"\n', mode)
    assert client(environ=environment).bootstrap == "h:1"


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (TWO, "stagign", "no profile 'stagign' in .*: did you mean staging"),
        (TWO, "x", "it has default, staging"),
        ("", "x", "it has none"),
        (
            "[default]\nbootsrtap = 'h:1'",
            None,
            r"unknown key bootsrtap of profile \[default\] .*did you mean bootstrap",
        ),
        ("[default]\nbootstrap = 1", None, "expected text in quotes"),
        ("bootstrap = 'h:1'", None, "expected a table for each profile"),
        ("[default", None, "is not a TOML file"),
    ],
)
def test_what_is_wrong_with_a_profile_is_one_sentence(
    environment: Environment, text: str, name: str | None, reason: str
) -> None:
    write(environment, text)
    with pytest.raises(SettingsError, match=reason):
        client(name, environment)
