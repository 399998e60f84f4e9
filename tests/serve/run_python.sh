#!/bin/sh
# Runs a test that is written in Python: run_python.sh SCRIPT ARGUMENTS. MEGALITH_TEST_PYTHON names
# the interpreter, such as one of a virtual environment that has the packages that the script wants.
python=${MEGALITH_TEST_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "skipped: $python is not installed"
  exit 77
fi
exec "$python" "$@"
