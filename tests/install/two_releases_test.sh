#!/usr/bin/env bash
# two_releases_test.sh BUILD BUILD: two builds with different releases of libtorch, installed into one prefix. A program and the command
# take the one that fits the libtorch they are given; another release is refused by name. scripts/test --full libtorch runs it.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
set -- "$(realpath "$1")" "$(realpath "$2")"
work=$1/install_test/two_releases
rm -rf "$work"
mkdir -p "$work/program"
prefix=$work/prefix
minors=()
torches=()
for build in "$@"; do
  for part in command shared headers; do
    cmake --install "$build" --prefix "$prefix" --component "lockstep_$part" >>"$work/install.log"
  done
  minors+=("$(sed -n 's/^set(LOCKSTEP_BUILT_WITH_TORCH_VERSION "\([0-9]*\.[0-9]*\).*/\1/p' "$build/package/lockstepBuild.cmake")")
  torches+=("$(sed -n 's/^set(TORCH_DIR "\(.*\)")$/\1/p' "$build/package/libtorch.txt")")
done
[ "${minors[0]}" != "${minors[1]}" ] || { echo "both builds are for libtorch ${minors[0]}"; exit 1; }

cp "$source_dir/tests/install/pkg_config/app.cpp" "$work/program/"
cat >"$work/program/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(OneOfTwo LANGUAGES CXX)
find_package(lockstep REQUIRED)
add_executable(app app.cpp)
target_link_libraries(app PRIVATE lockstep::lockstep)
END
program() { cmake -S "$work/program" -B "$work/program/$1" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DLOCKSTEP_LIBTORCH="$2"; }

for i in 0 1; do
  program "$i" "${torches[$i]}" >"$work/cmake.log"
  cmake --build "$work/program/$i" >>"$work/cmake.log"
  "$work/program/$i/app" | grep "1 ranks, sum 3"
  ldd "$work/program/$i/app" | grep "liblockstep-torch${minors[$i]}.so.[0-9]* => $prefix/"
  LOCKSTEP_LIBTORCH=${torches[$i]} "$prefix/bin/lockstep" doctor |
    grep "installed for libtorch ${minors[0]} and ${minors[1]}; libtorch ${minors[$i]}[.]"
  LOCKSTEP_LIBTORCH=${torches[$i]} "$prefix/bin/lockstep" train mnist --data digits --nproc 2 --epochs 1 --max-steps 2 --output "$work/run$i"
done

# A release for which there is no build.
mkdir -p "$work/other/lib" "$work/other/include/torch/headeronly" "$work/other/include/torch/csrc/api/include/torch"
touch "$work/other/lib/libtorch_cpu.so" "$work/other/include/torch/csrc/api/include/torch/torch.h"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 3\n#define TORCH_VERSION_PATCH 1\n' >"$work/other/include/torch/headeronly/version.h"
if refusal=$(program other "$work/other" 2>&1); then
  echo "find_package takes libtorch 2.3.1"
  exit 1
fi
tr -s ' \n' ' ' <<<"$refusal" | grep "Lockstep needs libtorch ${minors[0]} or ${minors[1]}, for which it is installed here"
if refusal=$(LOCKSTEP_LIBTORCH=$work/other "$prefix/bin/lockstep" train mnist 2>&1); then
  echo "the command takes libtorch 2.3.1"
  exit 1
fi
grep "Lockstep is installed here for libtorch ${minors[0]} or ${minors[1]}, and LOCKSTEP_LIBTORCH names 2.3.1" <<<"$refusal"
rm -rf "$prefix" "$work/program"
echo "Two releases stand side by side."
