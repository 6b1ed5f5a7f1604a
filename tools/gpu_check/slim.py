"""Overwrites the kernels of a CUDA library for other GPUs with zeros: `slim.py LIBRARY 90`.

The remaining kernels are machine code for sm_90. The file keeps its size and its addresses,
and compresses to a fraction. Kernels lie in "fat binaries" in the sections .nv_fatbin and
__nv_relfatbin: a header of 16 bytes, then entries, each with a header that has its kind and its
architecture.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
import sys

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAGIC = 0xBA55ED50
MACHINE_CODE = 2  # the kind of an entry; PTX is 1
Buffer = bytearray | mmap.mmap


def sections(library: str) -> list[tuple[int, int]]:
    """The begin and end of the sections in the file."""
    table = subprocess.check_output(["readelf", "-SW", library], text=True)
    found = []
    for line in table.splitlines():
        fields = line.rpartition("]")[2].split()
        if len(fields) > 4 and fields[0] in SECTIONS and fields[1] == "PROGBITS":
            begin = int(fields[3], 16)
            found.append((begin, begin + int(fields[4], 16)))
    return found


def slim(data: Buffer, begin: int, end: int, architecture: int) -> int:
    """Slims the bytes between two offsets. Returns the number of bytes overwritten."""
    gone = 0
    at = begin
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8
            continue
        at += header
        stop = at + size
        while at < stop:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            (of,) = struct.unpack_from("<I", data, at + 28)
            if (kind, of) != (MACHINE_CODE, architecture):
                data[at + header : at + header + size] = bytes(size)
                gone += size
            at += header + size
    return gone


def main(library: str, architecture: str) -> None:
    with open(library, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        gone = sum(slim(data, *place, int(architecture)) for place in sections(library))
    print(f"{library}: {gone / 2**20:.1f} MiB of kernels for other GPUs than sm_{architecture}")


if __name__ == "__main__":
    main(*sys.argv[1:])
