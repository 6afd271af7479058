#!/usr/bin/env bash
# wheel_test.sh BUILD LIBTORCH: the wheel of BUILD, installed into a fresh Python environment beside the torch of the folder LIBTORCH.
# 77: skipped, and said why.
set -euo pipefail
build=$1
libtorch=$2
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$build/install_test/wheel

skip() {
  echo "Skipped: $1"
  exit 77
}
python=$source_dir/.venv/bin/python
[ -x "$python" ] || python=python3
"$python" -c 'import auditwheel' 2>/dev/null || skip "auditwheel is not here (pip install auditwheel)"
command -v patchelf >/dev/null || skip "patchelf is not here (apt-get install patchelf)"
[ -f "$libtorch/version.py" ] || skip "$libtorch is not the folder of a Python wheel"

rm -rf "$work"
mkdir -p "$work"
"$source_dir/scripts/package" --wheel --build "$build" --out "$work/wheels"
wheel=$(echo "$work"/wheels/lockstep_torch-*manylinux*.whl)
"$python" -m auditwheel show "$wheel" | tr '\n' ' '
echo

# That Python's own environment, with the torch that is there.
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --no-deps --no-index --quiet "$wheel"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')

# Without a torch that fits, the error lists what there is; `lockstep run` does not need one.
if message=$("$work/venv/bin/python" -c 'import lockstep_torch' 2>&1); then
  echo "lockstep_torch is imported without torch"
  exit 1
fi
grep -q "has builds for torch 2[.][0-9]*, and torch is not installed" <<<"$message"
"$work/venv/bin/lockstep" run -np 2 /bin/true

echo "$(dirname "$libtorch")" >"$site/torch.pth"
"$work/venv/bin/lockstep" train mnist --data digits --nproc 2 --epochs 1 --max-steps 3 --output "$work/run"
test -f "$work/run/result.json"
"$work/venv/bin/python" - <<'END'
import os
import lockstep_torch
assert os.path.exists(lockstep_torch.library), lockstep_torch.library
assert os.path.exists(os.path.join(lockstep_torch.cmake_prefix_path, "lib", "cmake", "lockstep", "lockstepConfig.cmake"))
assert os.path.exists(os.path.join(lockstep_torch.include, "lockstep", "lockstep.h"))
END
if [ -d "$site/lockstep_torch/prefix/libexec/lockstep/"torch-*/lockstep_c10d ]; then
  (cd "$work" && RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 "$work/venv/bin/python" - <<'END'
import torch
import torch.distributed as dist
import lockstep_c10d
dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
one = torch.ones(3)
dist.all_reduce(one)
assert one.sum() == 3 and dist.get_backend() == "lockstep"
dist.destroy_process_group()
END
  )
fi

# A program by its CMake files.
prefix=$("$work/venv/bin/python" -c 'import lockstep_torch as l; print(l.cmake_prefix_path)')
mkdir "$work/program"
cp "$source_dir/tests/install/pkg_config/app.cpp" "$work/program/"
cat >"$work/program/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(FromWheel LANGUAGES CXX)
find_package(lockstep REQUIRED)
add_executable(app app.cpp)
target_link_libraries(app PRIVATE lockstep::lockstep)
END
cmake -S "$work/program" -B "$work/program/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DLOCKSTEP_LIBTORCH="$libtorch" >"$work/cmake.log"
cmake --build "$work/program/build" >>"$work/cmake.log"
"$work/venv/bin/lockstep" run -np 2 "$work/program/build/app" | grep "2 ranks, sum 9"
rm -rf "$work/venv" "$work/wheels" "$work/program"
echo "The wheel trains, is imported, and a program links it."
