"""Prints the flags to build against a TensorFlow; CMakeLists.txt reads them.

Without an argument that is the installed one. With a folder it is the one whose wheel was unpacked
there, which may be for another Python: nothing of it is imported.

Four lines: version, include folder, other compile options, link options; options are separated by
semicolons.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys


def of_installed() -> tuple[str, str, list[str], list[str]]:
    """Returns version, include folder, compile and link options of the installed TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    compile_flags = [
        flag
        for flag in tf.sysconfig.get_compile_flags()
        if not flag.startswith(("-I", "--std=", "-std="))
    ]
    link_flags = tf.sysconfig.get_link_flags()
    return tf.__version__, tf.sysconfig.get_include(), compile_flags, link_flags


def of_folder(folder: pathlib.Path) -> tuple[str, str, list[str], list[str]]:
    """Returns the same for the one in a folder, or ends the program."""
    package = folder / "tensorflow"
    names = [path.name for path in folder.glob("tensorflow*.dist-info")]
    found = [re.fullmatch(r"tensorflow(?:_cpu)?-(\d.*)\.dist-info", name) for name in names]
    versions = [match[1] for match in found if match]
    if len(versions) != 1 or not (package / "include").is_dir():
        sys.exit(f"{folder} is not what one wheel of tensorflow or tensorflow-cpu holds")
    # What tf.sysconfig says in all wheels from 2.16 to 2.22.
    compile_flags = ["-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"]
    link_flags = [f"-L{package}", "-l:libtensorflow_framework.so.2"]
    return versions[0], str(package / "include"), compile_flags, link_flags


def main(arguments: list[str]) -> None:
    """Prints the four lines."""
    flags = of_folder(pathlib.Path(arguments[0]).resolve()) if arguments else of_installed()
    version, include, compile_flags, link_flags = flags
    print(version, include, ";".join(compile_flags), ";".join(link_flags), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
