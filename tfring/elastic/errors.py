"""What makes elastic.run begin again; also under Horovod's names in horovod.common.exceptions."""

from __future__ import annotations

from tfring.compat.exceptions import HorovodInternalError as HorovodInternalError
from tfring.compat.exceptions import HostsUpdatedInterrupt as HostsUpdatedInterrupt
