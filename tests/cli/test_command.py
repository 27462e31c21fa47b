import pytest
from click import Command, Context, Group, Option

from headrace.cli import main
from headrace.cli.command import TeachingCommand


def leaves(command: Command, path: str = "headrace") -> list[tuple[str, Command]]:
    """Every command that does something, with its full name."""
    if not isinstance(command, Group):
        return [(path, command)]
    context = Context(command)
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found += leaves(child, f"{path} {name}")
    return found


LEAVES = leaves(main.root)


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_command_teaches_by_examples(name: str, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*name.split()[1:], "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples:\n" in shown
    assert isinstance(command, TeachingCommand)
    assert any(name in example for example in command.examples)
    for parameter in command.params:
        assert not isinstance(parameter, Option) or parameter.help, f"{parameter.name} has no help"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "headrace: no such command 'serv', did you mean 'serve'? See headrace --help"),
        (["consume", "x"], "headrace: no such command 'consume', it is 'headrace records tail'; see headrace --help"),
        (["version"], "headrace: no such command 'version', it is 'headrace --version'; see headrace --help"),
        (["help", "serve"], "headrace: no such command 'help', it is 'headrace --help'; see headrace --help"),
        (["topics", "help"], "headrace topics: no such command 'help', it is 'headrace topics --help'; see"),
        (["serve", "--kafak", "x"], "headrace serve: no such option '--kafak'"),
        (
            ["topics", "--list"],
            "headrace topics: no such option '--list', it is the command 'headrace topics list'",
        ),
        (["serve", "--set", "num.partition=1"], "headrace: --set: unknown broker setting num.partition, did you mean"),
        (["serve", "--kafka", "9092"], "headrace: --kafka 9092: expected HOST:PORT"),
        (["topics", "describe"], "headrace topics describe: missing argument 'NAME'"),
        (["topics", "create", "t", "--partitions", "0"], "headrace topics create: invalid value for '--partitions'"),
        (
            ["topics", "create", "t", "--partitions", "100001"],
            "headrace topics create: invalid value for '--partitions': 100001 is not in the range 1<=x<=100000",
        ),
        (
            ["topics", "grow", "t", "--partitions", "1000000"],
            "headrace topics grow: invalid value for '--partitions': 1000000 is not in the range 2<=x<=100000",
        ),
        (
            ["records", "consume", "t"],
            "headrace records: no such command 'consume', it is 'headrace records tail'; see headrace records --help",
        ),
        (["groups", "lst"], "headrace groups: no such command 'lst', did you mean 'list'?"),
        (["topics", "create", "t", "--config", "x"], "headrace: --config x: expected KEY=VALUE"),
        (["topics", "list", "--kafka", "9092"], "headrace: --bootstrap: expected HOST:PORT"),
        (["records", "produce", "t", "--key-separator", ""], "headrace: --key-separator: expected at least one"),
        (["records", "produce", "t", "--json", "--key-separator", ":"], "headrace: --key-separator is for plain lines"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_near_option_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["serve", "--kafak", "x"])
    assert "no such option '--kafak', did you mean '--kafka'? See headrace serve --help" in capsys.readouterr().err
