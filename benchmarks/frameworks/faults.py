"""What each framework does and says if a rank dies, stops, is slow, or has other weights."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.frameworks import jobs, results
from benchmarks.frameworks.environments import ROOT
from benchmarks.frameworks.rank import FAULT_LINE, FAULT_RANK

# Seconds after the fault until the job is killed.
LIMITS = {"kill": 90.0, "stop": 90.0, "slow": 120.0, "diverge": 90.0}
_EPOCHS = "mlp=5"
_OWN = (FAULT_LINE, "has trained")
_TELLS = re.compile(r"\b(rank|worker|task|peer|signal|SIG[A-Z]+|[A-Z]\w*Error|lost|closed)\b", re.I)
_NAMES_IT = re.compile(r"\brank\s*:?\s*1\b|\btask[:/ ]1\b", re.I)
_WORDS, _KEPT = 4, 60  # words of a line that tells something; lines that are kept


def fault(peer: jobs.Peer, place: jobs.Place, ranks: int, kind: str) -> dict[str, Any]:
    """Runs a job in which rank 1 has the fault; returns what happened."""
    words = ["--models", _EPOCHS, "--fault", kind]
    ended = jobs.run(peer, place, ranks, words, LIMITS[kind], FAULT_LINE)
    began = next((at for at, line in ended.lines if FAULT_LINE in line), None)
    if began is None:
        text = "\n".join(line for _, line in ended.lines[-5:])
        return {"peer": peer.name, "ranks": ranks, "fault": kind, "error": f"no fault: {text}"}
    after = [
        (at - began, line.replace(f"{ROOT}/", ""))
        for at, line in ended.lines
        if at > began and line.strip() and not any(own in line for own in _OWN)
    ]
    # Nobody ends a stopped rank that was started by hand.
    ends = [end for rank, end in enumerate(ended.ends) if rank != FAULT_RANK]
    telling = [(at, line.strip()) for at, line in after if _tells(line)]
    found = results.read_ranks(place.folder, ranks)
    return {
        "peer": peer.name,
        "ranks": ranks,
        "fault": kind,
        "seconds": None if None in ends else max(filter(None, ends)) - began,
        "codes": ended.codes,
        "said_after_s": telling[0][0] if telling else None,
        "said": _said([line for _, line in telling]),
        "equal_weights": None if found is None else _equal(found),
        "lines": [line for _, line in after[-_KEPT:]],
    }


def _tells(line: str) -> bool:
    """Returns whether a line is more than a word, and no line of a stack."""
    stack = line.strip().startswith(("@", "File "))
    return bool(_TELLS.search(line)) and len(line.split()) >= _WORDS and not stack


def _said(lines: list[str]) -> str:
    """Returns the last sentence about rank 1, or else the last line."""
    naming = [line for line in lines if _NAMES_IT.search(line) and len(line.split()) > 2 * _WORDS]
    return (naming or lines or [""])[-1]


def _equal(found: list[dict[str, Any]]) -> bool:
    return len({rank["together"]["mlp"]["weights"] for rank in found}) == 1
