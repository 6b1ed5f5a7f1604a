"""The compiled binding, as ``_native.core``; it is loaded at the first use of that name.

And what a call tells the other ranks of where it was made: `call_site`.

So a module can import `_native` at its top, and importing tfring does not load the runtime.

The libraries lie together in one folder, tfring/_lib, or in the folder that TFRING_X_LIB_DIR names
(for developers who build outside the checkout). In a wheel, which serves several minor versions of
TensorFlow, what depends on that version is in folders of that one: tensorflow-2.18, for example.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import re
import sys
import threading
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from tfring.runtime.texts.frames import GENERATED as GENERATED
from tfring.runtime.texts.frames import LIBRARIES

_MODULE_NAME = "tfring._lib._core"
_FOLDER_PREFIX = "tensorflow-"

if TYPE_CHECKING:
    from tfring.runtime import _core

    core = _core  # set by __getattr__

_MAX_CALL_SITE = 50  # characters of the file's name

# By file name, and by file name and line. Dictionaries are safe to use from several threads.
_in_library: dict[str, bool] = {}
_site_texts: dict[tuple[str, int], str] = {}
_lock = threading.Lock()  # held while the binding is loaded


def library_dir() -> pathlib.Path:
    """Returns the folder of the compiled libraries."""
    chosen = os.environ.get("TFRING_X_LIB_DIR")
    return pathlib.Path(chosen) if chosen else pathlib.Path(__file__).parents[1] / "_lib"


def ops_folder(tensorflow: str) -> pathlib.Path:
    """Returns where the op library for a version of TensorFlow is, if there is one.

    Args:
        tensorflow: the version, 2.18.1 for example.
    """
    minor = ".".join(tensorflow.split(".")[:2])
    folder = library_dir() / f"{_FOLDER_PREFIX}{minor}"
    return folder if folder.is_dir() else library_dir()


def minors_served() -> list[str]:
    """Returns the minor versions of TensorFlow of a wheel, ["2.16", "2.17"]; [] of other builds."""
    folders = library_dir().glob(f"{_FOLDER_PREFIX}*.*")
    minors = (folder.name.removeprefix(_FOLDER_PREFIX) for folder in folders)
    served = [minor for minor in minors if re.fullmatch(r"\d+\.\d+", minor)]
    return sorted(served, key=lambda minor: [int(part) for part in minor.split(".")])


def _load() -> ModuleType:
    loaded = sys.modules.get(_MODULE_NAME)
    if loaded is not None:
        return loaded
    folder = library_dir()
    candidates = [folder / f"_core{s}" for s in importlib.machinery.EXTENSION_SUFFIXES]
    path = next((candidate for candidate in candidates if candidate.exists()), None)
    if path is None:
        raise ImportError(
            f"tfring's compiled binding is not in {folder}: install tfring with pip, or build it "
            f"(see CONTRIBUTING.md); this Python is {sys.version.split()[0]} and looks for "
            f"{candidates[0].name}"
        )
    spec = importlib.util.spec_from_file_location(_MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python extension")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_MODULE_NAME] = module
    return module


def note_call_site() -> None:
    """Notes for the next call of this thread which line of the user's program makes it."""
    sys.modules[__name__].core.set_call_site(call_site(), False)


def call_site() -> str:
    """Returns where the user's program makes the present call, as "train.py:40".

    That is the innermost frame outside of tfring, TensorFlow and Keras; "" if there is none. Every
    eager call pays for this, so what was found out about files and lines is kept.
    """
    frame = user_frame()
    if frame is None:
        return ""
    place = (frame.f_code.co_filename, frame.f_lineno)
    return _site_texts.get(place) or site_text(*place)


def user_frame() -> FrameType | None:
    """Returns the innermost frame of this thread that belongs to the user's program."""
    frame: FrameType | None = sys._getframe(1)
    known = _in_library
    while frame is not None:
        ours = known.get(frame.f_code.co_filename)
        if not (in_library(frame) if ours is None else ours):
            break
        frame = frame.f_back
    return frame


def in_library(frame: FrameType) -> bool:
    """Tells whether a frame belongs to tfring, TensorFlow or Keras."""
    file = frame.f_code.co_filename
    known = _in_library.get(file)
    if known is None:
        module = str(frame.f_globals.get("__name__", ""))
        known = _in_library[file] = module.partition(".")[0] in LIBRARIES
    return known


def site_text(file: str, line: int) -> str:
    """Returns a line of a file as ranks compare it: the folder may differ from host to host.

    "" for a file that autograph has made up: its name differs from process to process.
    """
    if GENERATED.search(file):
        return ""
    folder, name = os.path.split(file)
    if name == "__init__.py":
        name = f"{os.path.basename(folder)}/{name}"
    if not name.isascii():  # it may hold what cannot be sent as UTF-8
        name = name.encode("utf-8", "replace").decode()
    text = _site_texts[(file, line)] = f"{name[-_MAX_CALL_SITE:]}:{line}"
    return text


def __getattr__(name: str) -> Any:
    if name != "core":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        if "core" not in globals():
            globals()["core"] = _load()
    return globals()["core"]
