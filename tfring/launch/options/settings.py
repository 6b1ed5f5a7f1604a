"""Options of ``tfring run`` that set a variable, and those of other launchers that it refuses."""

from __future__ import annotations

import argparse
import os
from collections.abc import Container
from typing import Any, NoReturn

from tfring.launch.options.option import told
from tfring.runtime.settings.environment import DYNAMIC
from tfring.runtime.settings.setting import Kind, Option, Setting
from tfring.runtime.settings.table import GROUPS

# Options of horovodrun and torchrun that have no effect here are errors. Why, and which ones:
_REFUSED = {
    "tfring run does not use MPI; with MPI start the job as `mpirun -np N python train.py`": (
        "--mpi",
        "--jsrun",
        "--mpi-args",
        "--tcp",
        "--binding-args",
        "--mpi-threads-disable",
        "--no-mpi-threads-disable",
    ),
    "not needed: tfring sends tensors as soon as they are ready. Remove this option": (
        "--cycle-time-ms",
    ),
    "not needed: tfring run caches nothing about hosts. Remove this option": ("--disable-cache",),
    "has no counterpart in tfring. Remove this option": (
        "--hierarchical-allgather",
        "--no-hierarchical-allgather",
        "--torus-allreduce",
        "--no-torus-allreduce",
        "--num-nccl-streams",
        "--gloo-timeout-seconds",
        "--thread-affinity",
    ),
    "not needed: on one host give only the number of ranks, as -np 4": ("--standalone",),
    "give the address where the nodes meet instead, as --rdzv-endpoint node1:29400": (
        "--master-addr",
        "--master_addr",
        "--master-port",
        "--master_port",
    ),
    "not needed: tfring assigns node ranks itself and has only one rendezvous method. Remove this "
    "option": (
        "--node-rank",
        "--node_rank",
        "--rdzv-backend",
        "--rdzv_backend",
        "--rdzv-conf",
        "--rdzv_conf",
    ),
    "write python -m MODULE instead, after all options": ("-m", "--module"),
}

# Options of horovodrun that are accepted and have no effect: MPI is never used, and there are no
# cycles.
_NO_EFFECT = ("--gloo", "--timeline-mark-cycles", "--no-timeline-mark-cycles")

# Options of horovodrun's autotuner. They set Horovod's variables, so `init` says that these have no
# effect.
_AUTOTUNER = {
    "--autotune-log-file": "HOROVOD_AUTOTUNE_LOG",
    "--autotune-warmup-samples": "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
    "--autotune-steps-per-sample": "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
    "--autotune-bayes-opt-max-samples": "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
    "--autotune-gaussian-process-noise": "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
}


class _Refused(argparse.Action):
    """Ends the program with the reason why an option is refused, the action's `const`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        del namespace, values
        parser.error(f"{option_string}: {self.const}")


class _Set(argparse.Action):
    """Keeps the text of the setting `dest` among the settings that have been given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        text = self.const if self.nargs == 0 else values
        namespace.settings = {**getattr(namespace, "settings", {}), self.dest: text}


def add_settings(parser: argparse.ArgumentParser, without: Container[Kind] = ()) -> None:
    """Adds the options of settings, and those of other launchers that do nothing or are refused.

    Some kinds of settings may be left out.
    """
    for group in GROUPS:
        target: Any = None
        for setting in group.settings:
            if setting.option is None or setting.kind in without:
                continue
            if not setting.internal:
                target = target or parser.add_argument_group(
                    f"Settings: {group.title[0].lower()}{group.title[1:]}"
                )
            _add_setting((target or parser).add_argument, setting, setting.option)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for name in _NO_EFFECT:
        parser.add_argument(name, action="store_true", **hidden)
    for name, switch in (("--autotune", "1"), ("--no-autotune", "0")):
        parser.add_argument(
            name, action=_Set, dest="HOROVOD_AUTOTUNE", nargs=0, const=switch, **hidden
        )
    for name, variable in _AUTOTUNER.items():
        parser.add_argument(name, action=_Set, dest=variable, **hidden)
    for why, names in _REFUSED.items():
        for name in names:
            parser.add_argument(name, action=_Refused, const=why, nargs="*", **hidden)


def _add_setting(add: Any, setting: Setting, option: Option) -> None:
    one: dict[str, Any] = {
        "dest": setting.variable,
        "action": _Set,
        "default": argparse.SUPPRESS,
    }
    text = argparse.SUPPRESS if setting.internal else _help_of(setting, option)
    if option.off:
        add(*option.names, **one, nargs=0, const="1", help=text)
        add(*option.off, **one, nargs=0, const="0", help=argparse.SUPPRESS)
        return

    def convert(words: str) -> str:
        return _text_of(setting, option, words)

    add(*option.names, **one, metavar=option.metavar, type=told(convert), help=text)


def _help_of(setting: Setting, option: Option) -> str:
    """Returns what the help says of an option: meaning, values and default."""
    text = option.help or setting.plain_meaning
    default = setting.shown_default
    if option.off:
        text += f" Off: {option.off[0]}."
        default = ("on" if setting.default else "off") if setting.kind is Kind.FLAG else ""
    elif setting.kind is Kind.CHOICE:
        text += f" {setting.allowed.capitalize()}."
    elif option.scale != 1:
        default = f"{int(default) / option.scale:g}"
    return f"{text} Default {default}." if default else text


def _text_of(setting: Setting, option: Option, words: str) -> str:
    """Returns the text of a setting that words of a command line stand for; or ValueError."""
    allowed = setting.allowed
    if option.scale != 1:
        low, high = setting.low / option.scale, setting.high / option.scale
        allowed = f"a number from {low:g} to {high:.0f}"
    try:
        text = str(int(float(words) * option.scale)) if option.scale != 1 else words
        text = setting.text_of(setting.parse(text)) if text else ""
    except (ValueError, OverflowError):
        text = ""
    if not text:
        raise ValueError(f'"{words}" has to be {allowed}')
    is_path = setting.kind is Kind.PATH and text.upper() != DYNAMIC
    return os.path.abspath(text) if is_path else text
