# shellcheck shell=bash
# Finds or installs what Lockstep is built with: Debian packages and libtorch. Sourced after common.sh.
# docs/dependencies.md describes each.

LOCKSTEP_TORCH_PIN=2.13.0      # what is installed where there is none
LOCKSTEP_TORCH_OLDEST=2.11     # cmake/LockstepTorch.cmake has the same two
LOCKSTEP_TORCH_NEWEST=2.15
LOCKSTEP_CPU_INDEX=https://download.pytorch.org/whl/cpu  # the PyTorch project's public index of CPU builds

# One line a package: its name, then what shows that it is there: a command, a header, or a file (a pattern).
# A compiler, cmake or library that came another way than by apt is as good.
lockstep_packages() {
  cat <<'END'
g++                  command c++
cmake                command cmake
ninja-build          command ninja
ccache               command ccache
libssl-dev           header openssl/evp.h
zlib1g-dev           header zlib.h
libxxhash-dev        header xxhash.h
nlohmann-json3-dev   header nlohmann/json.hpp
libcli11-dev         header CLI/CLI.hpp
libgtest-dev         header gtest/gtest.h
libgmock-dev         header gmock/gmock.h
python3              command python3
END
}

has_command() { command -v "$1" >/dev/null 2>&1; }

has_header() {
  local dir
  local -a dirs=()
  IFS=: read -ra dirs <<<"${CPATH:-}:${CPLUS_INCLUDE_PATH:-}"
  for dir in "${dirs[@]}" /usr/include /usr/local/include /usr/include/*-linux-gnu; do
    if [ -n "$dir" ] && [ -e "$dir/$1" ]; then return 0; fi
  done
  IFS=: read -ra dirs <<<"${CMAKE_PREFIX_PATH:-}"
  for dir in "${dirs[@]}"; do
    if [ -n "$dir" ] && [ -e "$dir/include/$1" ]; then return 0; fi
  done
  return 1
}

# Those of a list like lockstep_packages' on stdin that are not there.
missing_packages() {
  local name kind what
  while read -r name kind what; do
    case $kind in
      command)
        if [ "$what" = c++ ] && has_command "${CXX:-c++}"; then continue; fi
        has_command "$what" || echo "$name"
        ;;
      header) has_header "$what" || echo "$name" ;;
      file) compgen -G "$what" >/dev/null || echo "$name" ;;
    esac
  done
}

# install_packages NAME...: with apt, as root or through sudo.
install_packages() {
  if [ $# = 0 ]; then return; fi
  local log="$ROOT/build/apt.log" line="apt-get install -y --no-install-recommends $*"
  local -a as_root=()
  if ! has_command apt-get; then
    stop 2 "Missing: $*" "These are Debian's names; install them with this system's package manager, then run this again."
  fi
  if [ "$(id -u)" != 0 ]; then
    if ! has_command sudo || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
      stop 2 "Missing: $*" "Run this as root, then run this script again:" "" "  apt-get update && $line" ""
    fi
    as_root=(sudo)
    say "Some packages are missing; sudo may ask for your password."
  fi
  say "Installing with apt: $*"
  mkdir -p "$ROOT/build"
  local -a quiet=(env DEBIAN_FRONTEND=noninteractive)
  # A list that cannot be refreshed matters only if the installation then fails.
  "${as_root[@]}" "${quiet[@]}" apt-get update >"$log" 2>&1 </dev/null || true
  if ! "${as_root[@]}" "${quiet[@]}" apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" \
    >>"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    stop 1 "" "apt could not install them. The whole log: $log"
  fi
}

check_versions() {
  local version least
  version=$("${CXX:-c++}" -dumpversion 2>/dev/null || echo 0)
  least=11
  if [[ $("${CXX:-c++}" --version 2>/dev/null) == *clang* ]]; then least=16; fi
  if [ "${version%%.*}" -lt "$least" ]; then
    stop 2 "Lockstep is C++20 and needs g++ 11 or clang 16, or newer; ${CXX:-c++} is version $version." \
      "Another compiler can be named: CXX=g++-12 $0"
  fi
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  if [ "$(printf '%s\n3.22\n' "$version" | sort -V | head -n1)" != 3.22 ]; then
    stop 2 "Lockstep needs CMake 3.22 or newer; $(command -v cmake) is $version." \
      "Debian 12 and Ubuntu 22.04 have it; elsewhere: python3 -m pip install cmake"
  fi
}

is_libtorch() { [ -e "$1/lib/libtorch_cpu.so" ] && [ -n "$(libtorch_version "$1")" ]; }

libtorch_version() {
  local header
  for header in headeronly/version.h csrc/api/include/torch/version.h; do  # the second: until 2.8
    if [ ! -e "$1/include/torch/$header" ]; then continue; fi
    awk '/^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) / { v = v sep $3; sep = "." } END { print v }' "$1/include/torch/$header"
    return
  done
}

# The torch folder that an interpreter would import, or nothing. Does not import it.
torch_of_python() {
  "$1" -c 'import importlib.util as u
s = u.find_spec("torch")
print(s.submodule_search_locations[0] if s and s.submodule_search_locations else "")' 2>/dev/null || true
}

# Libraries that the loader does not find for the library $1, one a line.
unresolved() { ldd "$1" 2>/dev/null | awk '/=> not found/ { print $1 }'; }

# Is $1 a version of libtorch that Lockstep compiles with?
known_libtorch() {
  [[ $1 =~ ^[0-9]+\.[0-9]+ ]] &&
    printf '%s\n' "$LOCKSTEP_TORCH_OLDEST" "${BASH_REMATCH[0]}" "$LOCKSTEP_TORCH_NEWEST" | sort -C -V
}

# Is the torch folder $1 a libtorch of such a version that this machine can load, CUDA half included where that is asked for?
usable() {
  is_libtorch "$1" && known_libtorch "$(libtorch_version "$1")" && [ -z "$(unresolved "$1/lib/libtorch_cpu.so")" ] || return 1
  if [ "${LOCKSTEP_TORCH_BUILD:-cpu}" = cuda ]; then
    [ -e "$1/lib/libtorch_cuda.so" ] && [ -z "$(unresolved "$1/lib/libtorch_cuda.so")" ]
  fi
}

# Sets TORCH_FOLDER, and installs a wheel into .venv where nothing usable is found.
ensure_libtorch() {
  local dir python_dir
  if [ -n "${LOCKSTEP_LIBTORCH:-}" ]; then
    if ! is_libtorch "$LOCKSTEP_LIBTORCH"; then
      stop 2 "LOCKSTEP_LIBTORCH=$LOCKSTEP_LIBTORCH is no libtorch: it lacks lib/libtorch_cpu.so or its headers."
    fi
    if ! known_libtorch "$(libtorch_version "$LOCKSTEP_LIBTORCH")"; then
      stop 2 "LOCKSTEP_LIBTORCH=$LOCKSTEP_LIBTORCH is libtorch $(libtorch_version "$LOCKSTEP_LIBTORCH"); Lockstep needs $LOCKSTEP_TORCH_OLDEST to $LOCKSTEP_TORCH_NEWEST." \
        "Without LOCKSTEP_LIBTORCH, scripts/quickstart installs $LOCKSTEP_TORCH_PIN into .venv."
    fi
    LOCKSTEP_LIBTORCH=$(cd "$LOCKSTEP_LIBTORCH" && pwd)
    export LOCKSTEP_LIBTORCH
    TORCH_FOLDER=$LOCKSTEP_LIBTORCH
    return
  fi
  for dir in "$ROOT"/.venv/lib/python3*/site-packages/torch; do
    if usable "$dir"; then
      TORCH_FOLDER=$dir
      return
    fi
  done
  python_dir=$(torch_of_python python3)
  if [ -n "$python_dir" ] && is_libtorch "$python_dir"; then
    if usable "$python_dir"; then
      TORCH_FOLDER=$python_dir
      return
    fi
    say "python3's torch $(libtorch_version "$python_dir") will not do; Lockstep gets its own torch $LOCKSTEP_TORCH_PIN."
  fi
  install_torch
}

pip_quietly() { "$ROOT/.venv/bin/python" -m pip "$@" >>"$ROOT/build/pip.log" 2>&1 </dev/null; }

ensure_venv() {
  if [ -x "$ROOT/.venv/bin/python" ] && "$ROOT/.venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then install_packages python3-venv; fi
  python3 -m venv --clear "$ROOT/.venv" >>"$ROOT/build/pip.log" 2>&1 || stop 1 "python3 -m venv .venv failed; see build/pip.log"
}

install_torch() {
  local pin=$LOCKSTEP_TORCH_PIN
  mkdir -p "$ROOT/build"
  : >"$ROOT/build/pip.log"
  ensure_venv
  say "Installing torch $pin into .venv (log: build/pip.log)"
  if [ "${LOCKSTEP_TORCH_BUILD:-cpu}" = cuda ]; then
    # === excludes the CPU build, whose version is 2.13.0+cpu.
    pip_quietly install "torch===$pin" || pip_failed
  elif pip_quietly install "torch==$pin+cpu"; then
    :  # a configured index or folder has the CPU build
  elif index_answers && pip_quietly install "torch==$pin+cpu" --extra-index-url "$LOCKSTEP_CPU_INDEX"; then
    :
  else
    install_cuda_build_for_cpu "$pin"
  fi
  local dir
  for dir in "$ROOT"/.venv/lib/python3*/site-packages/torch; do TORCH_FOLDER=$dir; done
  usable "${TORCH_FOLDER:-}" || pip_failed
  same_times "$TORCH_FOLDER/include"
}

# Some of libtorch's headers are there twice. g++ takes two files for one (#pragma once) if their contents and times are alike,
# and pip gives each file the second in which it was written: whether a compiler cache knows a file again hung on that.
same_times() { find "$1" -type f -exec touch -d '2020-01-01 00:00:00 UTC' {} +; }

index_answers() {
  python3 -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' "$LOCKSTEP_CPU_INDEX/torch/" 2>/dev/null
}

# The plain wheel, which on Linux x86-64 is a CUDA build of half a gigabyte. Its CUDA libraries are several more, and
# only two small ones of them are needed to load its CPU half: those two are installed, the others left out.
install_cuda_build_for_cpu() {
  local dir
  say "No CPU build of torch to be had; taking the CUDA build and leaving its CUDA libraries out (0.6 GB)."
  pip_quietly install --no-deps "torch==$1" || pip_failed
  for dir in "$ROOT"/.venv/lib/python3*/site-packages/torch; do complete_cpu_half "$dir"; done
}

# complete_cpu_half FOLDER [pip's arguments...]: what the CPU half of the CUDA build in FOLDER is loaded with.
complete_cpu_half() {
  local dir=$1 toolkit
  shift
  if [ -z "$(unresolved "$dir/lib/libtorch_cpu.so")" ]; then return; fi
  toolkit=$(sed -n 's/^Requires-Dist: cuda-toolkit\[[^]]*\]\(==[0-9.]*\).*/\1/p' "$dir"-[0-9]*.dist-info/METADATA | head -n1)
  pip_quietly install "$@" "cuda-toolkit[cudart,cupti]$toolkit" || pip_failed
  if [ -n "$(unresolved "$dir/lib/libtorch_cpu.so")" ]; then
    stop 1 "$dir still lacks: $(unresolved "$dir/lib/libtorch_cpu.so" | tr '\n' ' ')" \
      "Set LOCKSTEP_LIBTORCH to a libtorch $LOCKSTEP_TORCH_OLDEST to $LOCKSTEP_TORCH_NEWEST, or run with --cuda, which installs all of torch's dependencies."
  fi
}

# fetch_torch NAME REQUIREMENT [pip's arguments...]: sets TORCH_FOLDER to such a torch in build/NAME, whose CUDA libraries are left
# out.
fetch_torch() {
  local dir="$ROOT/build/$1" requirement=$2
  shift 2
  TORCH_FOLDER=$dir/torch
  if is_libtorch "$TORCH_FOLDER"; then return; fi
  say "Fetching $requirement into ${dir/#$ROOT\//} (0.6 GB)"
  mkdir -p "$ROOT/build"
  : >"$ROOT/build/pip.log"
  ensure_venv
  rm -rf "$dir" "$dir.partial"
  pip_quietly install --no-deps --target "$dir.partial" "$@" "$requirement" || LOCKSTEP_TORCH_PIN=$requirement pip_failed
  same_times "$dir.partial/torch/include"
  mv "$dir.partial" "$dir"
}

# CUDA's headers of the version of the CUDA build in folder $1, beside it, for CUDA graphs (cmake/LockstepCuda.cmake): 3 MB. What
# follows are pip's arguments.
fetch_cuda_headers() {
  local dir=$1 version
  shift
  if compgen -G "${dir%/torch}/nvidia/cu*/include/cuda_runtime_api.h" >/dev/null; then return; fi
  version=$(sed -n 's/^Requires-Dist: cuda-toolkit\[[^]]*\]==\([0-9]*\.[0-9]*\).*/\1/p' "$dir"-[0-9]*.dist-info/METADATA | head -n1)
  if [ -z "$version" ] || ! pip_quietly install --no-deps --target "${dir%/torch}" "$@" \
    "nvidia-cuda-runtime==$version.*" "nvidia-cuda-crt==$version.*"; then
    say "Going on without CUDA's headers: CUDA graphs are left out, if there are none in /usr/local/cuda/include."
  fi
}

pip_failed() {
  tail -n 8 "$ROOT/build/pip.log" >&2
  stop 1 "" "pip could not install torch $LOCKSTEP_TORCH_PIN. The whole log: $ROOT/build/pip.log" \
    "A libtorch or torch $LOCKSTEP_TORCH_OLDEST to $LOCKSTEP_TORCH_NEWEST that is already here can be used: LOCKSTEP_LIBTORCH=/path/to/torch $0"
}

# What Python programs over Lockstep (docs/python.md) import with a torch of .venv: numpy, and what pip leaves out where it
# installs torch without its dependencies.
ensure_python_packages() {
  local -a names=(filelock fsspec jinja2 networkx numpy sympy typing_extensions)
  if [[ $TORCH_FOLDER != "$ROOT"/.venv/* ]] || "$ROOT/.venv/bin/python" -c \
    'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' "${names[@]}"; then return; fi
  say "Installing numpy into .venv, for Python programs"
  mkdir -p "$ROOT/build"
  pip_quietly install "${names[@]}" || say "pip could not install numpy (log: build/pip.log): Python programs over Lockstep want it."
}

# The Python module lockstep_c10d is optional: without python3-dev the build leaves it out and says so.
ensure_python_headers() {
  python3 -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' ||
    (install_packages python3-dev) || say "Going on without python3-dev: the Python module lockstep_c10d is left out."
}

# --rdzv-backend etcd is optional: without libcurl's header the build leaves it out and says so.
ensure_curl_header() {
  has_header curl/curl.h || (install_packages libcurl4-openssl-dev) ||
    say "Going on without libcurl4-openssl-dev: lockstep run --rdzv-backend etcd is left out."
}

# Everything that a build needs. Quick when it is all there: nothing but lookups, and not even those when the last
# answer still holds.
ensure_dependencies() {
  local known note="$ROOT/build/dependencies.txt" key
  key="$(cksum <"${BASH_SOURCE[0]}")|$ROOT|$PATH|${LOCKSTEP_LIBTORCH:-}|${LOCKSTEP_TORCH_BUILD:-}"
  if [ -f "$note" ]; then
    { IFS= read -r TORCH_FOLDER && IFS= read -r known; } <"$note" || true
    if [ "${known:-}" = "$key" ] && is_libtorch "$TORCH_FOLDER"; then return; fi
  fi
  local -a missing
  read -ra missing <<<"$(lockstep_packages | missing_packages | tr '\n' ' ')"
  install_packages "${missing[@]}"
  ensure_python_headers
  ensure_curl_header
  check_versions
  ensure_libtorch
  ensure_python_packages
  say "libtorch $(libtorch_version "$TORCH_FOLDER") in ${TORCH_FOLDER/#$ROOT\//}"
  mkdir -p "$ROOT/build"
  printf '%s\n%s\n' "$TORCH_FOLDER" "$key" >"$note"
}
