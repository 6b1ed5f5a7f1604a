#!/usr/bin/env bash
# mpi_run.sh RANKS PROGRAM [ARGS...]: runs the program with Open MPI's mpirun, also as root and with
# more ranks than cores.
set -euo pipefail

ranks=$1
shift
args=(-np "$ranks" --bind-to none)
# By default mpirun starts no more ranks than there are cores. With more, tests only become slower.
if ((ranks > $(nproc))); then
  args+=(--oversubscribe)
fi
# mpirun refuses to run as root unless both are set; a container often has no other user.
if [[ $(id -u) == 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2}
# mpirun names a folder after its process id, and does not start if that folder exists: a killed
# mpirun may have left it, and ids are reused. mpirun gets this shell's id, which exec keeps.
rm -rf "${TMPDIR:-/tmp}/ompi.$$"
exec mpirun "${args[@]}" "$@" </dev/null
