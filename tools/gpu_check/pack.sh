#!/usr/bin/env bash
# pack.sh OUT [--nccl FILE] [--site FOLDER] [--architecture 90] [--fake]: puts what `make gpu-check`
# needs on a machine without network into OUT, in parts of at most 48 MiB, with their checksums and
# the script run-part, which that machine runs. docs/gpu_results.md says how to make FILE and FOLDER.
#
#   --nccl          libnccl.so.2 to take along
#   --site          a folder with TensorFlow for GPUs and tfring, for the Python of that machine
#   --architecture  of that machine's GPU: kernels for other GPUs are left out
#   --fake        also the fakes of the driver and NCCL, to try it all without a GPU
set -euo pipefail
readonly out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
nccl='' site='' architecture=90 fake=''
while (($#)); do
  case $1 in
    --nccl) nccl=$(realpath "$2"); shift ;;
    --site) site=$(realpath "$2"); shift ;;
    --architecture) architecture=$2; shift ;;
    --fake) fake=yes ;;
    *) echo "pack.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cd "$(dirname "$0")/../.."
readonly build=${BUILD:-build} here=tools/gpu_check
readonly work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# slim FILE...: also strips debug symbols
slim() {
  for file in "$@"; do
    strip --strip-unneeded "$file"
    python3 "$here/slim.py" "$file" "$architecture"
  done
}
# parts SET: the folder of that name
parts() {
  tar -C "$work/$1" -c . | xz -T0 "-${XZ_LEVEL:-1}" |
    split -b "${PART_BYTES:-$((48 << 20))}" -d -a 2 - "$out/$1."
}

rm -f "$out"/first.* "$out"/tensorflow.*
mkdir -p "$work/first/tree/build/$here"
cp "$build/$here/tfring_gpu_check" "$work/first/tree/build/$here/"
if [[ -f $build/$here/libtfring_jax.so ]]; then
  cp "$build/$here/libtfring_jax.so" tfring/_lib/libtfring_{runtime,cuda}.so \
    "$work/first/tree/build/$here/"
fi
git ls-files -z tools/gpu_check.py "$here/*.py" 'tests/helpers/*.py' tests/fakes/stub_libraries.py \
  'tfring/*.py' 'tfring/*.pyi' | tar -c --null -T - | tar -x -C "$work/first/tree"
if [[ $fake ]]; then
  cp -r "$build/fakes" "$work/first/tree/build/fakes"
fi
if [[ $nccl ]]; then
  cp "$nccl" "$work/first/libnccl.so.2"
  slim "$work/first/libnccl.so.2"
fi
parts first
if [[ $site ]]; then
  mkdir -p "$work/tensorflow/site" "$work/tensorflow/tree/tfring"
  tar -C "$site" -c --exclude=tensorflow/include --exclude=__pycache__ . |
    tar -x -C "$work/tensorflow/site"
  # Without a tfring for the other Python that of this one.
  [[ -d $site/tfring ]] || cp -r tfring/_lib "$work/tensorflow/tree/tfring/_lib"
  for file in "$work"/tensorflow/site/tensorflow/libtensorflow_{cc,framework}.so.2; do
    [[ ! -f $file ]] || slim "$file"
  done
  parts tensorflow
fi
cp "$here/run-part" "$out/run-part"
cd "$out"
shopt -s nullglob
sha256sum first.* tensorflow.* >SHA256SUMS
ls -l
