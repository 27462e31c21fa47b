"""Write the pages of docs/ that are generated from the code (`make docs`); `--check` only reports stale pages."""

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import compatibility
import plots
import reference
import rights

from headrace import spark, testing
from headrace.broker.config.group_configs import GROUP_KEYS
from headrace.broker.config.keys import BROKER_KEYS
from headrace.broker.config.settings import PER_LISTENER
from headrace.cli import main as cli
from headrace.cli.command import Status
from headrace.groups.errors import GroupError
from headrace.kafka import apis
from headrace.kafka.errors import Code, code_of
from headrace.kafka.server.registry import APIS, Api
from headrace.metrics.families import FAMILIES, SERIES_EXCESS, Family
from headrace.oci import errors, faults, limits, operations
from headrace.oci.api.openapi import describe
from headrace.oci.api.registry import OPERATIONS, Operation
from headrace.oci.api.routing import BASE
from headrace.oci.settings import OCI_KEYS
from headrace.security.access.required_acls import told
from headrace.server.options import OPTIONS
from headrace.server.profiles import DEFAULT, Profile
from headrace.topics.config import TOPIC_KEYS
from headrace.topics.config_keys import ConfigKey
from headrace.topics.errors import TopicError

NEEDS = [
    "The last column contains the rights that a request needs if [ACLs](guides/acls.md) are enabled: an operation on",
    "each resource of that type that the request names.",
]
HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py (make docs) from the code: change it there. -->\n"


def settings_page() -> str:
    """Options of the server, broker settings and topic configuration."""
    idle = ", ".join(_code(key.name) for key in TOPIC_KEYS if not key.effective)
    own = ", ".join(_code(key) for key in PER_LISTENER)
    return "\n".join(
        [
            "# Settings",
            NOTE,
            "## Options of the server",
            "",
            "Each is a flag of `headrace serve`, an environment variable and a key of the file that `--config FILE` or",
            "`HEADRACE_CONFIG` names. A flag overrides the environment, the environment overrides the file, and the",
            "file overrides the default. The server does not start if a name is unknown.",
            "",
            *_table(
                ("flag", "variable", "key", "default", "description"),
                (
                    (
                        f"`{each.flag} {each.metavar}`",
                        f"`{each.variable}`",
                        f"`{each.name}`",
                        _code(each.default),
                        each.doc,
                    )
                    for each in OPTIONS
                ),
            ),
            "",
            "```toml",
            'kafka = "127.0.0.1:19092"',
            'advertise = "broker.example.org:9092"',
            "",
            "[set]",
            "num.partitions = 6",
            '"log.retention.hours" = 24',
            "```",
            "",
            "## Settings of the broker",
            "",
            "Set them with `--set KEY=VALUE`, in `HEADRACE_SET` (separated by spaces), or in the table `[set]` of the",
            "file. Names and defaults are those of Kafka unless the description states otherwise.",
            "",
            *_keys(BROKER_KEYS, "--set"),
            "### Settings of one listener",
            "",
            "`listener.name.NAME.KEY` overrides `KEY` for the listener NAME, which is written in lower case. You can",
            f"set {own} in this way. `https` uses the settings without a prefix.",
            "",
            "## Settings of the OCI API",
            "",
            "Set them in the same way.",
            "",
            *_keys(OCI_KEYS, "--set"),
            "## Configuration of a topic",
            "",
            "Set it when you create a topic (`headrace topics create NAME --config KEY=VALUE`, or any Kafka client),",
            "or change it later. The server refuses an unknown key.",
            "",
            *_keys((key for key in TOPIC_KEYS if key.effective), "--config"),
            "The server accepts and returns the following keys because clients send them. They have no effect, since a",
            f"log in Redis has no segments, index files or replicas: {idle}.",
            "",
            "## Configuration of a group",
            "",
            "It applies to consumer groups (KIP-848) and share groups (KIP-932), also before they exist. Set it with",
            "`headrace groups alter`, or with a Kafka client that knows the resource type GROUP. For example,",
            "`kafka-configs.sh --entity-type groups` shows and changes it. The broker settings",
            "`group.consumer.min.*`, `group.consumer.max.*` and those of `group.share.*` bound the values.",
            "`headrace groups describe` shows what is set. If you delete a group, its configuration remains.",
            "",
            *_keys(GROUP_KEYS, "--add-config"),
        ]
    )


def _keys(keys: Iterable[ConfigKey], option: str) -> list[str]:
    return [line for key in keys for line in reference.setting(key, option, _range(key))]


def _range(key: ConfigKey) -> str:
    if key.choices:
        return ", ".join(f"`{choice}`" for choice in key.choices)
    if key.minimum is not None and key.maximum is not None:
        return str(key.minimum) if key.minimum == key.maximum else f"{key.minimum} to {key.maximum}"
    return "" if key.minimum is None else f"{key.minimum} or more"


def _code(text: str | None) -> str:
    return "" if text is None else f"`{text}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def commands_page() -> str:
    """The help of every command, and what all of them share."""
    keys = ", ".join(_code(key) for key in Profile.__struct_fields__)
    sections = [
        "# Commands",
        NOTE,
        "## Server address",
        "",
        "Client commands take the address of the server from the first of these:",
        "",
        "1. the flag `--bootstrap HOST:PORT`",
        "2. the variable `HEADRACE_BOOTSTRAP`",
        "3. a profile",
        "4. the default, `127.0.0.1:9092`",
        "",
        "They do not use `HEADRACE_KAFKA`, the address where a server listens. Profiles are tables of",
        f"`~/.config/headrace/profiles.toml`, with any of {keys}. `--profile NAME` or `HEADRACE_PROFILE` selects a",
        f"profile, and `{DEFAULT}` is the default. A file with a password must be accessible to its owner only",
        "(`chmod 600`).",
        "",
        "```toml",
        "[default]",
        'bootstrap = "127.0.0.1:9092"',
        "",
        "[staging]",
        'bootstrap = "broker.example.org:9092"',
        'username = "acme/jane/ocid1.streampool.oc1..aaaa"',
        'password = "..."',
        "```",
        "",
        "## Output and exit codes",
        "",
        "Commands write results to standard output. They write errors and notes to standard error, one sentence each.",
        "Scripts can use the exit code:",
        "",
        *_table(("code", "meaning"), ((str(status.value), status.meaning) for status in Status)),
        "",
        'With `--json`, bytes that are UTF-8 are text, and other bytes are `{"base64": "..."}`. Tables show times in',
        "the local time zone, with its name. Characters that cannot be printed are escaped, for example as `\\x1b`.",
        "",
    ]
    for path, command in _commands(cli.root, "headrace"):
        context = click.Context(command, info_name=path, max_content_width=110, terminal_width=110)
        context.help_option_names = ["-h", "--help"]
        sections += [f"## {path}", "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(sections)


def _commands(command: click.Command, path: str) -> Iterable[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, f"{path} {name}")


def kafka_page() -> str:
    """What ApiVersions answers, and how each API behaves, from the head of its file."""
    apis.load()
    known = [APIS[key] for key in sorted(APIS)]
    lines = ["# The Kafka protocol", NOTE, "The server returns these APIs in ApiVersions, and refuses all others.", ""]
    lines += _table(
        ("key", "API", "versions", "advertised and refused", "needs"),
        (
            (
                str(api.key),
                api.name,
                f"{max(api.oldest, api.refused_below)}-{api.newest}",
                _refused(api),
                told(api.needs),
            )
            for api in known
        ),
    )
    lines += ["", *NEEDS]
    for api in known:
        handler = inspect.getclosurevars(api.handler).nonlocals.get("decorated", api.handler)
        about = inspect.getdoc(inspect.getmodule(handler)) or ""
        _, _, body = about.partition("\n\n")
        lines += ["", f"## {api.name}", "", *_headings(body.splitlines())]
    return "\n".join([*lines, ""])


def _refused(api: Api) -> str:
    return f"{api.oldest}-{api.refused_below - 1}" if api.refused_below > api.oldest else ""


def _headings(lines: Iterable[str]) -> Iterable[str]:
    """`Behavior` and the like as bold lines, with the empty line that Markdown wants before a list."""
    for line in lines:
        if line and not line.startswith(("-", " ")):
            yield f"**{line.rstrip(':')}**"
            yield ""
        else:
            yield line


def oci_page() -> str:
    """The operations of the OCI API, and how to get faults on purpose."""
    operations.load()
    listed = sorted(OPERATIONS.values(), key=lambda each: (each.client != "StreamClient", each.name))
    rows = [
        (
            each.client,
            f"[{each.name}](#{each.name.lower()})",
            each.method,
            _path(each),
            str(each.status),
            told(each.needs),
        )
        for each in listed
    ]
    lines = [
        "# The OCI Streaming API",
        NOTE,
        f"Oracle's Streaming API, version {BASE}: {len(listed)} operations, below `/{BASE}` of the HTTP address.",
        f"The OpenAPI description is at `/{BASE}/openapi.json`.",
        "",
        *_table(("client", "operation", "method", "path", "status", "needs"), rows),
        "",
        *NEEDS,
        "The resource of a stream is the topic of its name, that of a group is the group, and that of a stream pool",
        "is its virtual cluster. Other resources belong to the default virtual cluster.",
    ]
    description = describe(listed, "")
    for each in listed:
        lines += ["", f"## {each.name}", "", f"{each.method} {_path(each)}", "", inspect.cleandoc(each.doc)]
        lines += reference.operation(each.name, description)
    for module, title in ((limits, "Rate limits"), (faults, "Injected faults")):
        _, _, body = (inspect.getdoc(module) or "").partition("\n\n")
        lines += ["", f"## {title}", "", body]
    lines += ["", "## Schemas", "", *reference.schemas(description)]
    return "\n".join(lines)


def _path(each: Operation) -> str:
    return f"`/{BASE}{each.path.replace(':rest}', '}')}`"


_ARCHIVE = "headrace_archive_"


def _metric(family: Family) -> tuple[str, ...]:
    return f"`{family.name}`", family.kind.value, ", ".join(family.labels), family.doc


def metrics_page() -> str:
    """Return the page of metrics."""
    lines = [
        "# Metrics",
        NOTE,
        "`GET /metrics` on the HTTP address returns metrics in the text format of Prometheus. It serves clients on",
        "the same machine, and users on other machines [with HTTP Basic](guides/https.md). Series of virtual",
        "clusters (OCI stream pools) other than the default one also have the label `cluster`.",
        "",
        "The response contains at most `metrics.max.series` series. Lags and log end offsets are omitted first, then",
        f"topics, then groups. `{SERIES_EXCESS.name}` is the number of omitted series. In the value of a label,",
        "U+FFFD and a code replace a control character or half of a surrogate pair. A name of more than 256",
        "characters ends in a digest.",
        "",
        *_table(
            ("metric", "type", "labels", "meaning"),
            (_metric(each) for each in FAMILIES if not each.name.startswith(_ARCHIVE)),
        ),
        "",
        "## The archive",
        "",
        "`headrace archive --metrics 127.0.0.1:9100` serves these metrics at `/metrics` of that address.",
        "",
        *_table(
            ("metric", "type", "labels", "meaning"),
            (_metric(each) for each in FAMILIES if each.name.startswith(_ARCHIVE)),
        ),
        "",
    ]
    return "\n".join(lines)


def _kinds(of: type[TopicError]) -> Iterator[type[TopicError]]:
    """The errors of a kind, each with its own behind it."""
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


def errors_page() -> str:
    """Return the page of errors."""
    lines = [
        "# Errors",
        NOTE,
        "This page lists errors and their codes in each API. See [commands](commands.md#output-and-exit-codes) for",
        "exit codes, and [troubleshooting](guides/troubleshooting.md) for solutions by symptom.",
        "",
        "## Topics and records",
        "",
        *_table(("error", "Kafka", "OCI"), (_topic_error(kind) for kind in _kinds(TopicError))),
        "",
        "## Groups",
        "",
        "Names and numbers are those of Kafka. OCI instances get [the errors of OCI",
        "Streaming](guides/oci-groups.md#errors-and-recovery).",
        "",
        *_table(
            ("error", "Kafka"),
            ((said, _kafka_code(code_of(error))) for error, said in _told(GroupError, list(GroupError))),
        ),
        "",
        "## Only in the Kafka protocol",
        "",
        "The code for an unknown API or version ([list](kafka-apis.md)) is UNSUPPORTED_VERSION (35). An unexpected",
        "error is UNKNOWN_SERVER_ERROR (-1), with a line in the server's log. The server uses these codes:",
        "",
        *_table(("code", "name"), ((str(code.value), code.name) for code in Code if code is not Code.NONE)),
        "",
        "## Only in the OCI API",
        "",
        *_table(("status", "code"), ((str(status), f"`{code}`") for status, code in errors.BASE_CODES.items())),
        "",
        "Programs compare these texts, so they are exact:",
        "",
        *_table(("status", "message"), (("400", f"`{text}`") for text in _cursor_texts())),
        "",
    ]
    return "\n".join(lines)


def _topic_error(kind: type[TopicError]) -> tuple[str, str, str]:
    answer = errors.of_topic_error(kind())
    return inspect.getdoc(kind) or "", _kafka_code(code_of(kind())), f"{answer.status} `{answer.code}`"


def _kafka_code(code: Code) -> str:
    return f"{code.name} ({code.value})"


def _told(kind: type, members: list[GroupError]) -> Iterable[tuple[GroupError, str]]:
    """Members of an enumeration and the texts below them in its source, which Python does not keep."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    texts = [node.value.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return zip(members, (" ".join(str(text).split()) for text in texts[1:]), strict=True)


def _cursor_texts() -> tuple[str, ...]:
    return (
        errors.CURSOR_EXPIRED,
        errors.CURSOR_INVALID,
        errors.CURSOR_BEHIND,
        errors.UNRESERVED,
        errors.REQUEST_TOO_LARGE,
        errors.BAD_JSON,
    )


def rights_page() -> str:
    """The matrix of requests and rights."""
    rows = (
        (
            route.interface,
            route.name,
            ", ".join(effect.value for effect in route.effects),
            told(route.needs),
        )
        for route in rights.routes()
    )
    return "\n".join(
        [
            "# Rights",
            NOTE,
            rights.INTRODUCTION,
            *_table(("interface", "request", "effect", "rights"), rows),
            "",
        ]
    )


def compatibility_page() -> str:
    """The interfaces, clients, stores and platforms that Headrace works with."""
    apis.load()
    operations.load()
    return "\n".join(
        [
            "# Compatibility",
            NOTE,
            "This page lists the interfaces that Headrace serves, and the versions that its tests use. Other versions",
            "may work.",
            "",
            "## Kafka APIs",
            "",
            "Headrace serves these APIs:",
            "",
            *_table(("subject", "APIs"), compatibility.served()),
            "",
            "It does not serve these:",
            "",
            *_table(("feature", "APIs"), compatibility.unserved()),
            "",
            "## OCI Streaming operations",
            "",
            "Headrace serves all operations of both clients of the SDKs:",
            "",
            *_table(("client", "operations"), compatibility.operations()),
            "",
            "## Clients",
            "",
            "The tests use these clients without changes. `make test LANE=NAME` runs the tests of a client.",
            "",
            *_table(("client", "version", "lanes"), compatibility.clients()),
            "",
            "## Storage, Spark, Python and platforms",
            "",
            *_table(("component", "tested", "accepted"), compatibility.platform()),
            "",
            "Python 3.12 and 3.14, Spark on a Python other than 3.11, ARM, macOS and Windows are not tested.",
            "[Packages](packages.md) has the details.",
            "",
            *compatibility.DIFFERENCES,
            "",
        ]
    )


def python_page() -> str:
    """The Python API: packages for tests and for Spark."""
    return "\n".join(
        [
            "# Python API",
            NOTE,
            "Headrace is a server, and Python programs use it through a client of Kafka or OCI. Two packages are for",
            "your own code. Other modules of `headrace` are internal and change without notice.",
            "",
            "## headrace.testing",
            "",
            "Servers for tests. [Testing](guides/testing.md) has examples, and describes the fixtures of pytest.",
            "",
            *reference.python("headrace.testing", testing.__all__),
            "## headrace.spark",
            "",
            "Sessions, and committed offsets of streaming queries. [Spark](guides/spark.md) has examples, and",
            'describes the options of `format("headrace")`.',
            "",
            *reference.python("headrace.spark", spark.__all__),
            *reference.python("headrace.spark.session", ("create",)),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "python.md": python_page,
    "compatibility.md": compatibility_page,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "kafka-apis.md": kafka_page,
    "oci-operations.md": oci_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
    "rights.md": rights_page,
    "images/benchmarks-produce.svg": lambda: plots.plot("produce"),
    "images/benchmarks-consume.svg": lambda: plots.plot("consume"),
}


def main() -> int:
    """Write the pages; with `--check` write nothing, and return 1 when one is not current."""
    stale = [name for name, page in PAGES.items() if not _is_current(HERE / name, page())]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/{name} is not what the code says: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (HERE / name).write_text(PAGES[name](), "utf-8")
        print(f"wrote docs/{name}")
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text("utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
