"""What the command line says of an elastic job, of either kind."""

from __future__ import annotations

import argparse
import dataclasses
import os
from dataclasses import dataclass

from tfring.job.security.errors import SecretError
from tfring.job.security.sources import given_secret
from tfring.launch.elastic.coordinator import LocalHead
from tfring.launch.elastic.node_options import NodeOptions, node_options
from tfring.launch.elastic.nodes import NodeHead
from tfring.launch.elastic.options import ElasticOptions, elastic_options
from tfring.launch.elastic.orders import Head, Orders
from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.job_options import JobOptions


@dataclass(frozen=True)
class ElasticPlan:
    """How the ranks of a job change, and how its nodes meet if each has a launcher of its own."""

    elastic: ElasticOptions
    node: NodeOptions | None = None

    def prepared(self, job: JobOptions) -> JobOptions:
        """Returns a job with the secret that all its launchers know.

        Args:
            job: With a secret of its own.

        Raises:
            UsageError: The given secret cannot be used.
        """
        if self.node is None:
            return job
        try:
            return dataclasses.replace(job, secret=given_secret(os.environ) or "")
        except SecretError as error:
            raise UsageError(str(error)) from None

    def head(self, job: JobOptions, orders: Orders) -> Head:
        """Makes where the orders of the job's coordinator come from.

        Args:
            job: What to run.
            orders: Where they go.

        Raises:
            UsageError: There is no way to the coordinator.
        """
        if self.node is None:
            return LocalHead(job, self.elastic, orders)
        return NodeHead(self.node, self.elastic, job.start_timeout, orders)


def elastic_plan(options: argparse.Namespace) -> ElasticPlan | None:
    """Returns what the parsed options say of an elastic job; None: it is not elastic.

    Args:
        options: The parsed options.

    Raises:
        UsageError: They contradict each other.
    """
    nodes = node_options(options)
    if nodes is not None:
        return ElasticPlan(nodes[1], nodes[0])
    elastic = elastic_options(options)
    return None if elastic is None else ElasticPlan(elastic)
