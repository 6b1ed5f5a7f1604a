"""One Bazel package per folder of the runtime: all its sources and headers, and its arrows."""

load("@rules_cc//cc:defs.bzl", "cc_library")

def runtime_library(name, deps = [], exclude = [], **kwargs):
    """Declares `name` with the code, and `headers` for what links libtfring_runtime.so instead.

    Args:
      name: the folder's name.
      deps: targets of other folders.
      exclude: sources that have a rule of their own.
      **kwargs: other attributes of the library with the code.
    """
    cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = exclude),
        hdrs = native.glob(["*.h", "*.inc"]),
        deps = deps,
        visibility = ["//visibility:public"],
        **kwargs
    )
    cc_library(
        name = "headers",
        hdrs = native.glob(["*.h"]),
        deps = [d.split(":")[0] + ":headers" for d in deps if d.startswith("//")],
        visibility = ["//visibility:public"],
    )
