"""The way in for MODULE.bazel; Bazel before 6 has no module extensions and never loads this."""

load("//tools/bazel:python_headers.bzl", "python_headers")

def _impl(_ctx):
    python_headers(name = "python_headers")

python_headers_extension = module_extension(implementation = _impl)
