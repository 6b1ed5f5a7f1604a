"""The list of all files in the wheels, with their origin, as an SPDX 2.3 document.

https://spdx.github.io/spdx-spec/v2.3 describes the format.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LICENCE = "Apache-2.0"
# The first pattern that fits a file of a wheel says where it comes from.
_ORIGINS = (
    (
        r"tfring/_lib/tensorflow-([\d.]+)/.*\.so",
        "compiled from ops, with headers of TensorFlow {}",
    ),
    (r"tfring/_lib/libtfring_mpi_(\w+)\.so", "compiled from ops/mpi, with mpi.h of {}"),
    (r"tfring/_lib/libtfring_cuda\.so", "compiled from ops/gpu; its kernels by NVRTC"),
    (r"tfring/_lib/_core\..*\.so", "compiled from ops/bindings, with headers of pybind11"),
    (r"tfring/_lib/.*\.so", "compiled from ops/runtime and tools/wheels/older_wait.cc"),
    (r"tfring/_lib/build\.json", "written by the build: the versions it was compiled for"),
    (r"tfring/pages/(.*)", "copied from docs/{}"),
    (r"(tfring/.*)", "copied from {}"),
    (r"[^/]+\.dist-info/licenses/(.*)", "copied from {}"),
    (r"[^/]+\.dist-info/.*", "written by setuptools and auditwheel from pyproject.toml"),
)


class UnknownOriginError(Exception):
    """A wheel has a file that no pattern knows."""


def text(wheels: Sequence[Path], version: str, commit: str, epoch: int) -> str:
    """Returns the document as JSON.

    Raises:
        UnknownOriginError: a file fits no pattern.
    """
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    packages: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    relations: list[dict[str, str]] = []
    for number, wheel in enumerate(wheels):
        name = f"SPDXRef-Package-{number}"
        packages.append(_package(name, wheel.name, version, wheel.read_bytes()))
        relations.append(_relation("SPDXRef-DOCUMENT", "DESCRIBES", name))
        for file in _files(wheel, number):
            files.append(file)
            relations.append(_relation(name, "CONTAINS", file["SPDXID"]))
    for number, (tool, release) in enumerate(_tools()):
        name = f"SPDXRef-Tool-{number}"
        packages.append(_package(name, tool, release))
        relations.append(_relation(name, "BUILD_TOOL_OF", "SPDXRef-Package-0"))
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tfring-{version}",
        "documentNamespace": f"urn:tfring:{version}:{commit}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: tfring-tools/release"],
        },
        "comment": f"Built from commit {commit}",
        "packages": packages,
        "files": files,
        "relationships": relations,
    }
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def origin(name: str) -> str:
    """Returns where a file of a wheel comes from.

    Raises:
        UnknownOriginError: no pattern fits.
    """
    for pattern, words in _ORIGINS:
        found = re.fullmatch(pattern, name)
        if found:
            return words.format(*found.groups())
    raise UnknownOriginError(f"nobody knows where {name} comes from: see {__file__}")


def _files(wheel: Path, number: int) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(wheel) as archive:
        for count, name in enumerate(sorted(archive.namelist())):
            if name.endswith("/"):
                continue
            content = archive.read(name)
            yield {
                "SPDXID": f"SPDXRef-File-{number}-{count}",
                "fileName": f"./{name}",
                "checksums": [
                    _checksum("SHA1", hashlib.sha1(content, usedforsecurity=False).hexdigest()),
                    _checksum("SHA256", hashlib.sha256(content).hexdigest()),
                ],
                "licenseConcluded": LICENCE,
                "copyrightText": "NOASSERTION",
                "comment": origin(name),
            }


def _tools() -> Iterator[tuple[str, str]]:
    """Yields name and version of all that the build uses: its tools, and TensorFlow's headers."""
    for file in ("tools.txt", "mpich.txt", "tensorflows.txt"):
        for line in (HERE / file).read_text(encoding="utf-8").splitlines():
            found = re.match(r"([\w.-]+)==([^\s\\]+)", line)
            if found:
                yield found[1], found[2]


def _package(ref: str, name: str, version: str, content: bytes | None = None) -> dict[str, Any]:
    package = {
        "SPDXID": ref,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
    }
    if content is None:
        return package
    sums = [_checksum("SHA256", hashlib.sha256(content).hexdigest())]
    return {**package, "licenseConcluded": LICENCE, "checksums": sums}


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _checksum(algorithm: str, value: str) -> dict[str, str]:
    return {"algorithm": algorithm, "checksumValue": value}
