"""``tfring manifest``: prints the manifest of a job for Kubernetes."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfring.launch.hosts.errors import UsageError
from tfring.launch.kubernetes.kinds import MAKERS
from tfring.launch.kubernetes.options import Request, add_manifest_options, request_of
from tfring.observe.json_output import add_json_option, print_json

# What Kubernetes reads as numbers or truth values, and PyYAML as texts: 1e-3, 0o17, 09, y.
_NOT_TEXT = re.compile(r"(?:[-+]?\.?\d.*|[yYnN])\Z", re.DOTALL)
_FLOAT = "tag:yaml.org,2002:float"


@dataclass(frozen=True)
class Answer:
    """The manifest as a list of Kubernetes, which `kubectl apply -f -` takes, too.

    Attributes:
        apiVersion: "v1".
        kind: "List".
        items: The objects.
    """

    apiVersion: str
    kind: str
    items: list[dict[str, Any]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.usage = "tfring manifest --image IMAGE --nnodes N [options] PROGRAM ..."
    parser.description = (
        "Prints a manifest for Kubernetes; nothing is started. kubectl apply makes the job. "
        "More: tfring help kubernetes."
    )
    parser.epilog = (
        "tfring manifest --image registry/train --nnodes 4 --nproc-per-node 8 python train.py \\\n"
        "    | kubectl apply -f -"
    )
    add_json_option(parser, Answer)
    add_manifest_options(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the manifest; UsageError if options are wrong, or PyYAML is not installed."""
    request = request_of(options)
    if options.json:
        print_json(Answer("v1", "List", MAKERS[request.kind](request)))
    else:
        print(manifest(request, ["manifest", *options.words]), end="")
    return 0


def manifest(request: Request, argv: Sequence[str]) -> str:
    """Returns the manifest of a job, as YAML with a comment before it that says what to do.

    `argv` has the words of the command line that asks for it, after `tfring`. UsageError: PyYAML is
    not installed.
    """
    try:
        import yaml
    except ImportError:
        raise UsageError('tfring manifest needs PyYAML: pip install "tfring[cluster]"') from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes what is there twice a second time, and not as a reference to the first."""

        def ignore_aliases(self, data: object) -> bool:
            del data
            return True

    # What would be read as another type is written in quotes.
    Dumper.add_implicit_resolver(_FLOAT, _NOT_TEXT, [*"-+.0123456789yYnN"])
    objects = MAKERS[request.kind](request)
    text: str = yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=1000)
    lines = ["tfring " + " ".join(map(_word, argv))]
    namespace = "" if request.namespace is None else f" -n {_word(request.namespace)}"
    if request.kind != "mpijob":  # its launcher makes a secret, which reaches the workers by ssh
        lines.append(
            f"kubectl{namespace} create secret generic {_word(request.secret_name)} "
            '--from-literal=secret="$(openssl rand -hex 32)"'
        )
    return "".join(f"# {line}\n" for line in lines) + text


def _word(text: str) -> str:
    """Returns a word of a command line as bash reads it, on one line of what YAML can hold."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else _escape(c) for c in escaped) + "'"


def _escape(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
