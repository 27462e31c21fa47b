"""`headrace oci-config`: create a profile with a temporary key for Oracle's tools."""

import json
import re
from pathlib import Path

import click
import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from headrace.cli.command import CommandFailed, Status, command
from headrace.cli.output import print_json
from headrace.oci.api_keys import KeyDirectory, fingerprint
from headrace.oci.signatures import ApiKey
from headrace.security.tls.files import write_private
from headrace.server import config
from headrace.text.escaping import shown

_MARK = "# Written by headrace oci-config: a throw-away key, for a Headrace server only."
_LABEL = b"OCI_API_KEY\n"
"""Oracle's tools warn of a private key without this last line."""
_OCID = re.compile(r"[0-9a-zA-Z-_]+\.(?:[0-9a-zA-Z-_]*\.){3,}[0-9a-zA-Z-_]+")
_PROFILE = re.compile(r"[0-9a-zA-Z_.-]+")


class Profile(msgspec.Struct, frozen=True):
    """The result, printed with `--json`."""

    profile: str
    tenancy: str
    user: str
    fingerprint: str
    region: str
    endpoint: str
    config_file: str
    key_file: str
    public_key_file: str
    installed: str | None
    """Location of the public key for `oci.auth=verify`, or null if not requested."""

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables for Oracle's programs."""
        return {
            "OCI_CLI_CONFIG_FILE": self.config_file,
            "OCI_CLI_PROFILE": self.profile,
            "OCI_CLI_ENDPOINT": self.endpoint,
            "OCI_CONFIG_FILE": self.config_file,  # the SDKs' variable, without ~/.oci/config
        }


@command(
    "oci-config",
    examples="""
    headrace oci-config
    eval "$(headrace oci-config)"
    headrace oci-config ~/.headrace-oci --endpoint http://127.0.0.1:18080
    headrace oci-config ./alice --user ocid1.user.oc1..alice --keys /etc/headrace/keys
    headrace oci-config --json | jq -r .config_file
    """,
)
@click.argument("directory", type=click.Path(path_type=Path), default=Path(".headrace-oci"), required=False)
@click.option("--endpoint", metavar="URL", help="URL of the server's HTTP listener. [HEADRACE_HTTP]")
@click.option(
    "--keys",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Also write the public key to this directory, for a server with oci.auth=verify and oci.auth.keys=DIR.",
)
@click.option(
    "--tenancy",
    metavar="OCID",
    default="ocid1.tenancy.oc1..headrace",
    show_default=True,
    help="Tenancy of the profile.",
)
@click.option(
    "--user", metavar="OCID", default="ocid1.user.oc1..headrace", show_default=True, help="User of the profile."
)
@click.option(
    "--region",
    metavar="NAME",
    default="us-ashburn-1",
    show_default=True,
    help="Oracle's tools require one; Headrace does not.",
)
@click.option(
    "--profile", metavar="NAME", default="DEFAULT", show_default=True, help="Name of the profile in the file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def oci_config(
    directory: Path,
    endpoint: str | None,
    keys: Path | None,
    tenancy: str,
    user: str,
    region: str,
    profile: str,
    as_json: bool,
) -> None:
    """Write a profile for Oracle's tools and SDKs.

    Creates a configuration file as in ~/.oci, and a key, in DIRECTORY (default: ./.headrace-oci). An existing key is
    kept. Prints environment variables for a shell: eval "$(headrace oci-config)" sets them. Changes nothing outside of
    DIRECTORY and --keys.
    """
    _check(tenancy, user, region, profile)
    endpoint = _endpoint(endpoint)
    directory = directory.expanduser().absolute()
    try:
        written = _write(directory, keys, ApiKey(tenancy, user, ""), region, profile, endpoint)
    except OSError as error:
        raise CommandFailed(f"cannot write {error.filename}: {error.strerror}") from None
    if as_json:
        print_json(msgspec.to_builtins(written) | {"environment": written.environment})
    else:
        for line in _lines(written):
            click.echo(line)


def _check(tenancy: str, user: str, region: str, profile: str) -> None:
    for option, text in (("--tenancy", tenancy), ("--user", user)):
        if not _OCID.fullmatch(text):
            raise CommandFailed(f"{option} {text}: expected an OCID, such as ocid1.user.oc1..alice", Status.USAGE)
    for option, text in (("--region", region), ("--profile", profile)):
        if not _PROFILE.fullmatch(text):
            raise CommandFailed(f"{option} {text}: expected letters, digits and dashes", Status.USAGE)


def _endpoint(given: str | None) -> str:
    try:
        endpoint = (given or config.client().http).rstrip("/")
    except config.SettingsError as error:
        raise CommandFailed(str(error), Status.USAGE) from None
    if not re.fullmatch(r"https?://[^/\s\"'$`\\]+(/[^\s\"'$`\\]*)?", endpoint):
        raise CommandFailed(f"--endpoint {endpoint}: expected a URL, such as http://127.0.0.1:8080", Status.USAGE)
    return endpoint


def _write(directory: Path, keys: Path | None, who: ApiKey, region: str, profile: str, endpoint: str) -> Profile:
    config_file, key_file, public_file = directory / "config", directory / "key.pem", directory / "key_public.pem"
    if config_file.exists() and not config_file.read_text("utf-8", "replace").startswith(_MARK):
        raise CommandFailed(f"{config_file} exists and was not written by headrace oci-config; name another directory")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Keeps even a temporary private key out of Git repositories.
    write_private(directory / ".gitignore", b"*\n")
    private = _private_key(key_file)
    public = private.public_key()
    who = ApiKey(who.tenancy, who.user, fingerprint(public))
    public_file.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    lines = (
        _MARK,
        f"[{profile}]",
        f"user={who.user}",
        f"fingerprint={who.fingerprint}",
        f"tenancy={who.tenancy}",
        f"region={region}",
        f"key_file={key_file}",
    )
    write_private(config_file, "".join(line + "\n" for line in lines).encode())
    return Profile(
        profile=profile,
        tenancy=who.tenancy,
        user=who.user,
        fingerprint=who.fingerprint,
        region=region,
        endpoint=endpoint,
        config_file=str(config_file),
        key_file=str(key_file),
        public_key_file=str(public_file),
        installed=None if keys is None else str(KeyDirectory(keys.expanduser().absolute()).install(who, public)),
    )


def _private_key(path: Path) -> rsa.RSAPrivateKey:
    if path.exists():
        try:
            key = load_pem_private_key(path.read_bytes().removesuffix(_LABEL), None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, rsa.RSAPrivateKey):
            raise CommandFailed(f"{path} is no RSA private key without a password; name another directory")
        return key
    made = rsa.generate_private_key(65537, 2048)
    write_private(path, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + _LABEL)
    return made


def _lines(written: Profile) -> list[str]:
    exports = [f'export {name}="{_quoted(text)}"' for name, text in written.environment.items()]
    lines = [
        f"# Wrote {shown(written.config_file)} with the key {shown(written.key_file)}.",
        "# For the oci command, and SDKs that look into the environment; all of this can be put into eval.",
        *exports,
        "# Then:",
        f"#   oci streaming admin stream create --name first --partitions 1 --compartment-id {written.tenancy}",
        "# For the SDK for Python:",
        f"#   config = oci.config.from_file({json.dumps(written.config_file)}, {json.dumps(written.profile)})",
        f"#   admin = oci.streaming.StreamAdminClient(config, service_endpoint={json.dumps(written.endpoint)})",
    ]
    if written.installed is not None:
        lines.append(f"# The server finds the public key as {shown(written.installed)}.")
    return lines


def _quoted(text: str) -> str:
    return re.sub(r'(["$`\\])', r"\\\1", text)
