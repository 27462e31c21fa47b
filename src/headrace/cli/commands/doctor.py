"""`headrace doctor`: check whether a server can start and work here."""

import click
import msgspec

from headrace.cli import diagnostics
from headrace.cli.command import Status, command
from headrace.cli.commands.serve import server_options
from headrace.cli.diagnostics import Finding, State
from headrace.cli.output import print_json, print_table
from headrace.server.config import SettingsError, load, option_source


@command(
    "doctor",
    examples="""
    headrace doctor
    headrace doctor --data /var/lib/headrace --kafka 0.0.0.0:9092
    headrace doctor --redis redis://localhost:6379/0
    headrace doctor --json | jq '.[] | select(.state == "failed")'
    """,
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@server_options
def doctor(as_json: bool, config: str | None, sets: tuple[str, ...], **flags: str | None) -> int:
    """Check ports, Valkey or Redis, Java, Spark, disk, memory, clock, permissions and versions.

    Takes the options of `headrace serve`. For each item, reports whether a server with these options can start and work
    on this machine, and what to do otherwise. Changes nothing. Exits with status 1 if a server cannot start.
    """
    given = {name.replace("_", "-"): text for name, text in flags.items()}
    found = [*diagnostics.versions()]
    kafka = None
    try:
        options, of_broker, _ = load(given, sets, config)
    except SettingsError as error:
        found.append(Finding("options", State.FAILED, str(error), "headrace serve --help"))
    else:
        for check in (diagnostics.storage, diagnostics.data, diagnostics.ports, diagnostics.memory):
            found += check(options)
        where = option_source("kafka", given, config) or ("listeners" if of_broker.listeners else None)
        # A listener may use port 0. Without a configured address, commands may use another one.
        kafka = None if where is None or not options.kafka.port else (options.kafka, where)
    for check_machine in (diagnostics.files, diagnostics.clock, diagnostics.spark):
        found += check_machine()
    found += diagnostics.server(kafka)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found)
    return Status.FAILED if any(each.state is State.FAILED for each in found) else Status.DONE


def _print(found: list[Finding]) -> None:
    print_table(["check", "state", "found"], [[each.check, each.state, each.found] for each in found])
    to_do = [each for each in found if each.advice]
    if to_do:
        click.echo("\nWhat to do:")
        for each in to_do:
            click.echo(f"  {each.check}: {each.advice}")
