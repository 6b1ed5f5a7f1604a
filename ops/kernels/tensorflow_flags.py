"""Prints the flags to build against the installed TensorFlow; CMakeLists.txt reads them.

Four lines: version, include folder, other compile options, link options; options are separated by
semicolons.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

compile_flags = [
    flag
    for flag in tf.sysconfig.get_compile_flags()
    if not flag.startswith(("-I", "--std=", "-std="))
]
print(tf.__version__)
print(tf.sysconfig.get_include())
print(";".join(compile_flags))
print(";".join(tf.sysconfig.get_link_flags()))
