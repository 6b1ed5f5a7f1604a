"""The headers and libraries of the Python environment that TFRING_PYTHON names (else python3).

Only //ops/kernels, //ops/xla and //ops/bindings use them; those targets are tagged manual, so that the
runtime and its tests build without Python.
"""

_QUERY = """
import os, sysconfig, pybind11, tensorflow
root = os.path.dirname(tensorflow.__file__)
print(sysconfig.get_paths()["include"])
print(pybind11.get_include())
print(os.path.join(root, "include"))
print(os.path.join(root, "libtensorflow_framework.so.2"))
print(os.path.join(root, "libtensorflow_cc.so.2"))
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

load("@rules_cc//cc:defs.bzl", "cc_import", "cc_library")

cc_library(
    name = "python",
    hdrs = glob(["python/**/*.h"]),
    includes = ["python"],
)

cc_library(
    name = "pybind11",
    hdrs = glob(["pybind11/**/*.h"]),
    includes = ["pybind11"],
    deps = [":python"],
)

cc_import(
    name = "tensorflow_framework",
    shared_library = "libtensorflow_framework.so.2",
)

cc_library(
    name = "tensorflow",
    hdrs = glob(["tensorflow/**"]),
    defines = [
        "EIGEN_MAX_ALIGN_BYTES=64",
        "_GLIBCXX_USE_CXX11_ABI=1",
    ],
    includes = ["tensorflow"],
    deps = [":tensorflow_framework"],
)

cc_import(
    name = "tensorflow_cc",
    shared_library = "libtensorflow_cc.so.2",
)

# With what the headers of tf2xla include.
cc_library(
    name = "tensorflow_compiler",
    includes = [
        "tensorflow/external/farmhash_archive/src",
        "tensorflow/external/highwayhash",
    ],
    deps = [
        ":tensorflow",
        ":tensorflow_cc",
    ],
)
"""

def _impl(ctx):
    python = ctx.os.environ.get("TFRING_PYTHON", "python3")
    answer = ctx.execute([python, "-c", _QUERY])
    if answer.return_code != 0:
        fail("%s has no tensorflow or pybind11: set TFRING_PYTHON\n%s" % (python, answer.stderr))
    include, pybind11, tensorflow, framework, compiler = answer.stdout.strip().split("\n")[-5:]
    ctx.symlink(include, "python")
    ctx.symlink(pybind11, "pybind11")
    ctx.symlink(tensorflow, "tensorflow")
    ctx.symlink(framework, "libtensorflow_framework.so.2")
    ctx.symlink(compiler, "libtensorflow_cc.so.2")
    ctx.file("BUILD", _BUILD)

python_headers = repository_rule(
    implementation = _impl,
    environ = ["TFRING_PYTHON"],
    local = True,
)
