#!/usr/bin/env bash
# mpi_run.sh RANKS PROGRAM [ARGS...]: Open MPI's mpirun with what this machine needs.
set -euo pipefail

ranks=$1
shift
args=(-np "$ranks" --bind-to none)
# A small machine runs more ranks than it has cores; a test is no worse for it, only slower.
if ((ranks > $(nproc))); then
  args+=(--oversubscribe)
fi
# mpirun refuses root unless told; a container often has no other user.
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
exec mpirun "${args[@]}" "$@" </dev/null
