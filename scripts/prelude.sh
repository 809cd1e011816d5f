# What every script here shares. Sourced, never run: where things are, how to speak, how to fail.
# shellcheck shell=bash

caller=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# THINWIRE_VENV puts the virtual environment somewhere other than .venv.
venv=${THINWIRE_VENV:-$root/.venv}
[[ $venv == /* ]] || venv=$caller/$venv
export THINWIRE_VENV=$venv

# A user's pip settings must not turn an install into a virtual environment into something else.
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_USER=0

say() {
  printf 'thinwire: %s\n' "$*"
}

fail() {
  printf 'thinwire: %s\n' "$*" >&2
  exit 1
}

# require_compiler: stop with advice unless CMake will find a C++ compiler.
require_compiler() {
  local name
  for name in ${CXX:-c++ g++ clang++}; do
    if command -v "$name" >/dev/null; then return; fi
    if [[ -n ${CXX:-} ]]; then fail "CXX is \"$CXX\", but there is no such program: correct it or unset it."; fi
  done
  fail "No C++ compiler found: install one (Debian, Ubuntu: g++; Fedora: gcc-c++; Arch: gcc) and run this again."
}

# native_build FOLDER OPTION...: configure the C++ part into FOLDER and compile all of it, without Python unless an
# option says otherwise.
native_build() {
  local folder=$1
  shift
  require_compiler
  # A build folder that came along with a copied or moved tree still points at the old place.
  if [[ -f $folder/CMakeCache.txt ]] &&
    ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
    rm -rf "$folder"
  fi
  "$venv/bin/cmake" -S "$root" -B "$folder" -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" \
    -DTHINWIRE_PYTHON=OFF "$@" >/dev/null &&
    "$venv/bin/cmake" --build "$folder" -- --quiet
}
