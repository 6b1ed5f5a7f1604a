#!/bin/sh
# must_fail.sh RIGHT WRONG CASE: the case passes in the right program, and fails, crashes or hangs
# in the one with a mistake built in.
timeout 120 "$1" "$3" || exit 1
timeout 60 "$2" "$3" >/dev/null 2>&1
status=$?
case $status in
  0) echo "$2 passes $3, although there is a mistake in it"; exit 1 ;;
  126 | 127) echo "$2 cannot be started"; exit 1 ;;
  *) echo "caught: exit status $status" ;;
esac
