#!/bin/sh
# must_catch.sh TEXT PROGRAM ARGUMENT...: the program fails and says TEXT.
text=$1
shift
output=$(timeout 240 "$@" 2>&1)
status=$?
if [ $status -ne 1 ]; then
  echo "exit status $status instead of 1: $1 does not find the mistake that is built in"
  exit 1
fi
case $output in
  *"$text"*) echo "caught: $text" ;;
  *) echo "$output"; echo "$1 fails, but not because: $text"; exit 1 ;;
esac
