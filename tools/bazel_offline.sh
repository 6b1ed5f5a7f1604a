#!/usr/bin/env bash
# Builds and tests the runtime with Debian's Bazel (bazel-bootstrap, bazel-rules-java) and without a
# network. The repositories that Bazel would fetch are replaced by stubs that define only what our
# BUILD files use. With a current Bazel and a network, `bazel test //...` does the same.
# BAZEL_DISK_CACHE names a folder that keeps compiled files.
set -euo pipefail
cd "$(dirname "$0")/.."

java_rules=/usr/share/bazel/rules/java
if ! command -v bazel >/dev/null || [[ ! -e $java_rules/WORKSPACE ]]; then
  echo "needs bazel and $java_rules: apt-get install bazel-bootstrap bazel-rules-java" >&2
  exit 1
fi

work=${TFRING_BAZEL_DIR:-$PWD/.bazel}
stubs=$work/stubs
mkdir -p "$stubs/rules_cc/cc" "$stubs/coverage"
touch "$stubs/rules_cc/WORKSPACE" "$stubs/coverage/WORKSPACE"

cat >"$stubs/rules_cc/cc/BUILD" <<'STUB'
toolchain_type(
    name = "toolchain_type",
    visibility = ["//visibility:public"],
)
STUB
{
  for rule in cc_binary cc_import cc_library cc_test cc_toolchain cc_toolchain_suite; do
    echo "$rule = native.$rule"
  done
} >"$stubs/rules_cc/cc/defs.bzl"
cat >"$stubs/coverage/BUILD" <<'STUB'
filegroup(
    name = "coverage_report_generator",
    visibility = ["//visibility:public"],
)
STUB

# The C++ tests open sockets on the loopback interface and send descriptors over unix sockets, so
# they run outside Bazel's sandbox.
command=${1:-test}
shift || true
targets=("$@")
if ((${#targets[@]} == 0)); then
  targets=(//ops/... //tests/...)
fi
# Without a server, which would leave the process group of .ci/run; and without the optimiser, because
# this tests the BUILD files. Tests that would then compute for minutes are only built.
exec bazel --batch --output_user_root="$work/out" "$command" --compilation_mode=fastbuild \
  --test_tag_filters=-computes \
  --override_repository="rules_cc=$stubs/rules_cc" \
  --override_repository="rules_java=$java_rules" \
  --override_repository="remote_coverage_tools=$stubs/coverage" \
  ${BAZEL_DISK_CACHE:+"--disk_cache=$BAZEL_DISK_CACHE"} --nocache_test_results \
  --symlink_prefix="$work/link-" --jobs="${CMAKE_BUILD_PARALLEL_LEVEL:-2}" --spawn_strategy=local "${targets[@]}"
