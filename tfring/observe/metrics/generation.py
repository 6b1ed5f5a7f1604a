"""Opens the endpoint for metrics at init, and closes it at shutdown."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path

from tfring.job.security.errors import SecretError
from tfring.job.security.sources import read_secret_file
from tfring.observe.metrics.collector import RankCollector
from tfring.observe.metrics.server import Endpoint
from tfring.runtime import _native
from tfring.runtime.settings.environment import Settings
from tfring.runtime.settings.setting import SettingError

_log = logging.getLogger("tfring")


class _State:
    """Of the present generation. Written by init and shutdown, which one lock guards."""

    endpoint: Endpoint | None = None


_state = _State()


def check(settings: Settings) -> None:
    """Raises SettingError if other hosts could reach the endpoint without a token."""
    if settings.metrics_port is None or settings.metrics_token_file is not None:
        return
    if not ipaddress.ip_address(settings.metrics_addr).is_loopback:
        raise SettingError(
            f'TFRING_METRICS_ADDR is "{settings.metrics_addr}", which other hosts can reach: set '
            "TFRING_METRICS_TOKEN_FILE to a file of mode 0600 with Prometheus' token, or unset the "
            "address, so that only this host can read the metrics"
        )


def begin(rank: int, local_rank: int, record: str | None, settings: Settings) -> None:
    """Opens the endpoint if the settings ask for one. A failure is a warning.

    Args:
        rank: Ours.
        local_rank: Among the ranks of this host.
        record: The file of our record, if there is one.
        settings: From the environment.
    """
    if settings.metrics_port is not None:
        _state.endpoint = _open_endpoint(rank, local_rank, record, settings)


def end() -> None:
    """Closes the endpoint, before the runtime ends."""
    endpoint, _state.endpoint = _state.endpoint, None
    if endpoint is not None:
        endpoint.close()


def _open_endpoint(
    rank: int, local_rank: int, record: str | None, settings: Settings
) -> Endpoint | None:
    port = settings.metrics_port or 0
    if port:
        port += local_rank
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

        token = None
        if settings.metrics_token_file is not None:
            token = read_secret_file(Path(settings.metrics_token_file))
        registry = CollectorRegistry()
        registry.register(RankCollector(rank, record))
        ProcessCollector(registry=registry)
        endpoint = Endpoint(settings.metrics_addr, port, token, make_wsgi_app(registry))
    except ImportError as error:
        _warn(rank, f"{error}: pip install 'tfring[metrics]'")
    except SecretError as error:
        _warn(rank, f"TFRING_METRICS_TOKEN_FILE: {error}")
    except (OSError, OverflowError) as error:
        where = f"{settings.metrics_addr} port {port}"
        _warn(rank, f"{where}: {error}. Set TFRING_METRICS_PORT to another port, or 0 for any")
    else:
        _log.info("rank %d: metrics at %s", rank, endpoint.url)
        _native.core.mark(f"metrics at {endpoint.url}")
        return endpoint
    return None


def _warn(rank: int, why: str) -> None:
    _log.warning("rank %d has no endpoint for metrics: %s", rank, why)
