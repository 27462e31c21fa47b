"""`headrace completion`: print a shell's completion script."""

import click
from click.shell_completion import get_completion_class

from headrace.cli.command import command

VARIABLE = "_HEADRACE_COMPLETE"
"""Variable by which the shell requests completions; click derives it from the command's name."""
SHELLS = ("bash", "zsh", "fish")


@command(
    "completion",
    examples="""
    eval "$(headrace completion bash)"
    headrace completion bash > ~/.local/share/bash-completion/completions/headrace
    headrace completion zsh > ~/.zfunc/_headrace
    headrace completion fish > ~/.config/fish/completions/headrace.fish
    """,
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands, options, topics and groups in SHELL.

    Names of topics and groups come from the server of the command line: --bootstrap, --profile, an environment variable
    or a profile.
    """
    found = get_completion_class(shell)
    assert found is not None
    root = context.find_root().command
    made = found(root, {}, "headrace", VARIABLE)
    # Not `source()`, which starts bash to find its version.
    script = made.source_template % made.source_vars()
    # click's function for fish misreads text after a comma in a help.
    click.echo(script.replace('string split "," ', 'string split -m 1 "," '))
