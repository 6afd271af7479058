#!/usr/bin/env bash
# deb_test.sh BUILD LIBTORCH: the Debian packages of BUILD, installed into an empty Debian 12, run the README's first job with the
# folder LIBTORCH, without a compiler. 77: skipped, and said why.
set -euo pipefail
build=$1
libtorch=$2
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
work=$build/install_test/deb

skip() {
  echo "Skipped: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "only root can make a root folder of Debian"
for command in debootstrap dpkg-buildpackage dh lintian; do
  command -v "$command" >/dev/null || skip "$command is not here (apt-get install debootstrap dpkg-dev debhelper lintian)"
done

clean_up() {
  umount "$work/debian/proc" 2>/dev/null || true
  umount "$work/debian/opt/libtorch" 2>/dev/null || true
}
trap clean_up EXIT
clean_up
rm -rf --one-file-system "$work"
mkdir -p "$work"
"$source_dir/scripts/package" --deb --build "$build" --out "$work/debs"

# The mirror that this machine uses itself.
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' | sed -n 's/^bookworm //p' | sort -u | sed -n 1p)
[ -n "$mirror" ] || skip "this machine's apt has no mirror of Debian 12"
debootstrap --variant=minbase bookworm "$work/debian" "$mirror" >"$work/debootstrap.log" 2>&1 ||
  skip "debootstrap failed: $(tail -n 1 "$work/debootstrap.log")"
cp -r /etc/apt/apt.conf.d/. "$work/debian/etc/apt/apt.conf.d/"
mkdir -p "$work/debian/debs" "$work/debian/opt/libtorch"
cp "$work"/debs/*.deb "$work/debian/debs/"
mount -t proc proc "$work/debian/proc" || skip "/proc cannot be mounted in a root folder here"
mount --bind "$libtorch" "$work/debian/opt/libtorch"

inside() { chroot "$work/debian" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
# Only the run-time packages: no compiler comes with them.
inside sh -c "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /debs/liblockstep-torch*.deb /debs/lockstep_*.deb" >"$work/apt.log" 2>&1 ||
  { tail -n 20 "$work/apt.log"; exit 1; }
for compiler in g++ c++ cc; do
  if inside sh -c "command -v $compiler"; then
    echo "$compiler is there, which a compiler should not be"
    exit 1
  fi
done
inside lockstep train mnist --data digits --nproc 2 --epochs 1 --max-steps 20 --output /srv/run
inside test -f /srv/run/result.json
inside lockstep doctor | grep "libtorch" | grep "/opt/libtorch"
# Only libtorch is looked for when it runs.
inside sh -c 'ldd /usr/lib/liblockstep-torch*.so.[0-9]' | grep -v -e libtorch -e libc10 | (! grep "not found")
echo "The first job ran from the packages alone."

# Programs in C++, with TorchScript too, in C and Fortran, by pkg-config and by CMake, with Debian's compilers.
inside sh -c "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /debs/liblockstep-dev_*.deb g++ gfortran cmake ninja-build pkg-config" \
  >"$work/apt-dev.log" 2>&1 || { tail -n 20 "$work/apt-dev.log"; exit 1; }
program=$work/debian/srv/program
mkdir "$program"
cp "$source_dir/tests/install/pkg_config/app.cpp" "$source_dir/examples/c/regression.c" "$source_dir/examples/fortran/advection.f90" \
  "$source_dir/examples/torchscript.cpp" "$source_dir/examples/on_ranks.h" "$source_dir/examples/usage.h" "$program/"
cat >"$program/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(FromDebian LANGUAGES C CXX Fortran)
find_package(lockstep REQUIRED COMPONENTS comm c)
add_executable(app app.cpp)
target_link_libraries(app PRIVATE lockstep::comm)
add_executable(torchscript torchscript.cpp)
target_link_libraries(torchscript PRIVATE lockstep::lockstep)
add_executable(regression regression.c)
target_link_libraries(regression PRIVATE lockstep::c m)
add_executable(advection advection.f90)
target_link_libraries(advection PRIVATE lockstep::fortran)
END
flags='$(pkg-config --define-variable=torch_dir=/opt/libtorch --cflags --libs'
inside sh -c "cd /srv/program && g++ app.cpp -o app $flags lockstep) && lockstep run -np 2 ./app" | grep "2 ranks, sum 9"
inside sh -c "cd /srv/program && gcc -std=c11 -Wall -Wextra -Wpedantic -Werror regression.c -o regression $flags lockstep-c) -lm && lockstep run -np 2 ./regression"
inside sh -c 'cd /srv/program && LOCKSTEP_LIBTORCH=/opt/libtorch cmake -B build -G Ninja >cmake.log 2>&1 && cmake --build build >>cmake.log 2>&1' ||
  { tail -n 40 "$program/cmake.log"; exit 1; }
inside lockstep run -np 2 /srv/program/build/app | grep "2 ranks, sum 9"
inside lockstep run -np 2 /srv/program/build/torchscript | grep "step 300: loss 0.0"
inside lockstep run -np 2 /srv/program/build/regression
inside lockstep run -np 2 /srv/program/build/advection | grep "largest error in a step"
umount "$work/debian/proc" "$work/debian/opt/libtorch"
rm -rf --one-file-system "$work/debian"
echo "Programs in C++, TorchScript, C and Fortran ran on two ranks."
