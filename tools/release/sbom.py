"""The list of all files in the wheels, with their origin, as an SPDX 2.3 document.

https://spdx.github.io/spdx-spec/v2.3 describes the format.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
LICENCE = "Apache-2.0"
# The first pattern that fits a file of a wheel says where it comes from: words, and the package
# that it was built with, as pins() names it.
_ORIGINS = (
    (
        r"tfring/_lib/tensorflow-(2\.1[89])/_tfring_xla\.so",
        "compiled from ops, with headers of {pin}, and of XLA's FFI from a later one",
        "tensorflow-cpu {}",
    ),
    (
        r"tfring/_lib/tensorflow-([\d.]+)/.*\.so",
        "compiled from ops, with headers of {pin}",
        "tensorflow-cpu {}",
    ),
    (r"tfring/_lib/libtfring_mpi_(\w+)\.so", "compiled from ops/mpi, with mpi.h of {pin}", "{}"),
    (
        r"tfring/_lib/libtfring_cuda\.so",
        "compiled from ops/gpu; its kernels by {pin}",
        "nvidia-cuda-nvrtc-cu12",
    ),
    (r"tfring/_lib/_core\..*\.so", "compiled from ops/bindings, with headers of {pin}", "pybind11"),
    (r"tfring/_lib/.*\.so", "compiled from ops/runtime and tools/wheels/older_wait.cc", ""),
    (
        r"tfring/_lib/.*build\.json",
        "written by the build: the versions it was compiled for",
        "",
    ),
    (r"tfring/pages/(.*)", "copied from docs/{}", ""),
    (r"(tfring/.*)", "copied from {}", ""),
    (r"[^/]+\.dist-info/licenses/(.*)", "copied from {}", ""),
    (
        r"[^/]+\.dist-info/.*",
        "written by setuptools and auditwheel from pyproject.toml",
        "setuptools",
    ),
)
_COPIED = "copied from "


class Pin(NamedTuple):
    """A package that the build uses."""

    name: str
    version: str
    hashes: tuple[str, ...]


class UnknownOriginError(Exception):
    """No pattern knows a file of a wheel, or it is no copy of the source that one names."""


def text(
    wheels: Sequence[Path], source: Path, version: str, commit: str, epoch: int, compiler: str
) -> str:
    """Returns the document as JSON.

    Args:
        wheels: the wheels.
        source: the folder that they were built from.
        version: of tfring.
        commit: that was built.
        epoch: when, in seconds since 1970.
        compiler: what `c++ --version` says.

    Raises:
        UnknownOriginError: a file fits no pattern, or differs from its source.
    """
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc)
    packages: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    relations: list[dict[str, str]] = []
    tools = [*pins().values(), Pin("c++", compiler, ())]
    for number, wheel in enumerate(wheels):
        name = f"SPDXRef-Package-{number}"
        contents = list(_files(wheel, source, number))
        files += contents
        packages.append(_wheel(name, wheel, version, contents))
        relations.append(_relation("SPDXRef-DOCUMENT", "DESCRIBES", name))
        relations += [_relation(name, "CONTAINS", file["SPDXID"]) for file in contents]
        for tool in range(len(tools)):
            relations.append(_relation(f"SPDXRef-Tool-{tool}", "BUILD_TOOL_OF", name))
    packages += [_tool(f"SPDXRef-Tool-{number}", pin) for number, pin in enumerate(tools)]
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
    for pattern, words, package in _ORIGINS:
        found = re.fullmatch(pattern, name)
        if found:
            pin = pins().get(package.format(*found.groups()))
            return words.format(*found.groups(), pin=f"{pin.name} {pin.version}" if pin else "")
    raise UnknownOriginError(f"nobody knows where {name} comes from: see {__file__}")


@functools.cache
def pins() -> dict[str, Pin]:
    """Returns all that the build uses; of TensorFlow several, as "tensorflow-cpu 2.18"."""
    found = {}
    for file in ("tools.txt", "mpich.txt", "tensorflows.txt"):
        lines = (HERE / file).read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        for line in lines:
            name, equal, rest = line.partition("==")
            if equal and not line.startswith("#"):
                version, *hashes = rest.replace("--hash=sha256:", "").split()
                minor = re.match(r"\d+\.\d+", version)
                key = f"{name} {minor[0]}" if minor and name.startswith("tensorflow") else name
                found[key] = Pin(name, version, tuple(hashes))
    return found


def _files(wheel: Path, source: Path, number: int) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(wheel) as archive:
        for count, name in enumerate(sorted(archive.namelist())):
            if name.endswith("/"):
                continue
            content = archive.read(name)
            comment = origin(name)
            if comment.startswith(_COPIED):
                copied = source / comment.removeprefix(_COPIED)
                if not copied.is_file() or copied.read_bytes() != content:
                    raise UnknownOriginError(f"{name} of {wheel.name} is no copy of {copied}")
            yield {
                "SPDXID": f"SPDXRef-File-{number}-{count}",
                "fileName": f"./{name}",
                "checksums": [
                    _checksum("SHA1", hashlib.sha1(content, usedforsecurity=False).hexdigest()),
                    _checksum("SHA256", hashlib.sha256(content).hexdigest()),
                ],
                "licenseConcluded": LICENCE,
                "copyrightText": "NOASSERTION",
                "comment": comment,
            }


def _wheel(ref: str, wheel: Path, version: str, files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    code = hashlib.sha1("".join(sums).encode(), usedforsecurity=False).hexdigest()
    return {
        **_package(ref, wheel.name, version),
        "filesAnalyzed": True,
        "packageVerificationCode": {"packageVerificationCodeValue": code},
        "licenseConcluded": LICENCE,
        "checksums": [_checksum("SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())],
    }


def _tool(ref: str, pin: Pin) -> dict[str, Any]:
    package = _package(ref, pin.name, pin.version)
    if pin.hashes:
        place = f"pkg:pypi/{pin.name}@{pin.version}"
        reference = {"referenceType": "purl", "referenceLocator": place}
        package["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", **reference}]
        package["comment"] = (
            f"pip took a file with one of these SHA-256 sums: {' '.join(pin.hashes)}"
        )
    return package


def _package(ref: str, name: str, version: str) -> dict[str, Any]:
    return {
        "SPDXID": ref,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
    }


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _checksum(algorithm: str, value: str) -> dict[str, str]:
    return {"algorithm": algorithm, "checksumValue": value}
