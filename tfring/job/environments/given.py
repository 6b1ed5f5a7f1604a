"""Rank and size as the arguments of init give them: a URL as torch.distributed has it, or a store.

`env://` takes torchrun's variables, `tcp://host:port` names where rank 0 listens, `file:///path` a
file that all ranks can write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from tfring.job.environments.identity import Identity, Rendezvous
from tfring.job.environments.launchers import of_torchrun


class Given(NamedTuple):
    """The arguments of init with the rank, the size and how the ranks meet."""

    init_method: str | None  # a URL, or None
    store: bool  # whether a store was given
    rank: int | None  # our rank, or None
    size: int | None  # number of ranks, or None
    comm: bool = False  # whether a communicator or a list of ranks was given

    def identity(self, environ: Mapping[str, str]) -> Identity | None:
        """Returns the identity in the arguments; None if the environment decides.

        ValueError: the arguments contradict each other, or one is missing or impossible.
        IdentityError: the variables for env:// are.
        """
        if self.store and self.init_method is not None:
            raise ValueError("init(store=..., init_method=...): only one of them")
        if self.comm and (self.store or self.init_method is not None):
            raise ValueError(
                "init(comm=...) is for processes that a launcher has started, and init(store=...) "
                "and init(init_method=...) say themselves who they are: only one of them"
            )
        if self.store:
            return self._at("init(store=...)", Rendezvous.STORE, {})
        if self.init_method is not None:
            return self._by_url(self.init_method, environ)
        if self.rank is not None or self.size is not None:
            raise ValueError(
                f"init(rank={self.rank}, size={self.size}) says who this process is, and not how "
                "the ranks meet: add store= or init_method=, or let the launcher say all of it"
            )
        return None

    def _by_url(self, text: str, environ: Mapping[str, str]) -> Identity:
        url = urlsplit(text)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        unknown = sorted(set(query) - {"rank", "size", "world_size"})
        if unknown:
            raise ValueError(f'init_method="{text}": {unknown[0]} is neither rank nor size')
        if url.scheme == "env":
            return self._by_variables(text, environ)
        if url.scheme == "file" and url.path.strip("/") and not url.netloc:
            at = self._at(text, Rendezvous.STORE, query)
            return dataclasses.replace(at, address=url.path)
        if url.scheme == "tcp":
            try:
                host, port = url.hostname, url.port
            except ValueError:
                host, port = None, None
            if host and port:
                at = self._at(text, Rendezvous.TCP, query)
                return dataclasses.replace(
                    at, address=host, port=port, job_id=f"tcp/{port}", public_seed=f"{host} {port}"
                )
        raise ValueError(
            f'init_method="{text}" is none of env://, tcp://host:port and file:///path/of/a/file'
        )

    def _by_variables(self, text: str, environ: Mapping[str, str]) -> Identity:
        """Returns the identity in torchrun's variables; rank and size may be arguments instead."""
        values = dict(environ)
        for name, number in (("RANK", self.rank), ("WORLD_SIZE", self.size)):
            if number is not None:
                values[name] = str(number)
        found = of_torchrun(values)
        if found is None:
            raise ValueError(
                f'init_method="{text}" needs the variables RANK, WORLD_SIZE, MASTER_ADDR and '
                "MASTER_PORT: start the ranks with a launcher that sets them, or set them"
            )
        return found

    def _at(self, source: str, rendezvous: Rendezvous, query: Mapping[str, str]) -> Identity:
        rank = self._number(source, "rank", self.rank, query.get("rank"))
        in_url = query.get("size", query.get("world_size"))
        size = self._number(source, "size", self.size, in_url)
        if not 0 <= rank < size:
            raise ValueError(f"{source}: rank {rank} of {size}, and ranks go from 0 to size - 1")
        return Identity(source, rank, size, rendezvous if size > 1 else Rendezvous.NONE)

    @staticmethod
    def _number(source: str, name: str, given: int | None, in_url: str | None) -> int:
        try:
            numbers = {int(value) for value in (given, in_url) if value is not None}
        except ValueError:
            numbers = set()
        if len(numbers) != 1:
            raise ValueError(
                f"{source}: {name} is {given} as an argument and {in_url} in the URL; one of them "
                f"has to be a whole number: init(..., {name}=)"
            )
        return numbers.pop()
