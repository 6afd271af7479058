# shellcheck shell=bash
# What compiles and tests Lockstep for 64-bit ARM on another machine: scripts/test --full arm. Sourced after test_dependencies.sh.
# The machine's own packages are left as they are: the libraries for ARM are unpacked below build/.

aarch64_packages() {
  cat <<'END'
g++-aarch64-linux-gnu  command aarch64-linux-gnu-g++
qemu-user              command qemu-aarch64
END
}

# What lockstep_packages names, of those that a program is linked with or includes.
aarch64_libraries() {
  say libssl-dev libssl3 zlib1g-dev zlib1g libxxhash-dev libxxhash0 nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev
}

# apt-get for ARM, with lists of its own and no knowledge of what is installed.
aarch64_apt() {
  local dir="$ROOT/build/aarch64-apt"
  mkdir -p "$dir/lists/partial" "$dir/archives/partial"
  apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root -o Dir::State::Lists="$dir/lists" \
    -o Dir::State::Status=/dev/null -o Dir::Cache="$dir" -o Dir::Cache::Archives="$dir/archives" "$@" >>"$ROOT/build/apt.log" 2>&1 </dev/null
}

# The libraries in build/aarch64-root, where the toolchain file looks for them.
ensure_aarch64_root() {
  local root="$ROOT/build/aarch64-root" package link
  local -a packages
  mapfile -t packages < <(aarch64_libraries)
  if [ -e "$root/complete" ]; then return; fi
  say "Fetching ${#packages[@]} of Debian's packages for ARM into build/aarch64-root (6 MB)"
  rm -rf "$root" "$root.partial"
  mkdir -p "$root.partial/usr/lib" "$root.partial/packages"
  ln -s usr/lib "$root.partial/lib"
  if ! aarch64_apt update || ! (cd "$root.partial/packages" && aarch64_apt download "${packages[@]}"); then
    stop 1 "apt-get could not fetch them; the log: $ROOT/build/apt.log" \
      "Their place may be another one than that of this machine's packages (Ubuntu: ports.ubuntu.com)."
  fi
  for package in "$root.partial"/packages/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root.partial"
  done
  rm -r "$root.partial/packages"
  mv "$root.partial" "$root"
  # Links that mean ARM's own root.
  while read -r link; do ln -sfn "$root$(readlink "$link")" "$link"; done < <(find "$root" -type l -lname '/*')
  touch "$root/complete"
}

# The wheel of the same torch in build/aarch64-torch; sets TORCH_FOLDER. It is a CUDA build: its CPU half loads two small libraries of
# CUDA's.
ensure_aarch64_torch() {
  local version toolkit minor
  local -a elsewhere=(--only-binary=:all: --implementation cp --python-version 3.12 --platform manylinux2014_aarch64)
  for minor in 17 24 25 26 27 28; do elsewhere+=(--platform "manylinux_2_${minor}_aarch64"); done
  version=$(libtorch_version "$TORCH_FOLDER")
  if is_libtorch "$ROOT/build/aarch64-torch/torch" && [ "$(libtorch_version "$ROOT/build/aarch64-torch/torch")" != "$version" ]; then
    rm -rf "$ROOT/build/aarch64-torch"
  fi
  fetch_torch aarch64-torch "torch==$version" "${elsewhere[@]}"
  toolkit=$(sed -n 's/^Requires-Dist: cuda-toolkit\[[^]]*\]\(==[0-9.]*\).*/\1/p' "$TORCH_FOLDER"-[0-9]*.dist-info/METADATA | head -n1)
  if [ -n "$toolkit" ] && ! compgen -G "$ROOT/build/aarch64-torch/nvidia/cu*/lib/libcupti.so.*" >/dev/null; then
    pip_quietly install --target "$ROOT/build/aarch64-torch" "${elsewhere[@]}" "cuda-toolkit[cudart,cupti]$toolkit" || pip_failed
  fi
}

ensure_aarch64() {
  ensure_aarch64_root
  ensure_aarch64_torch
  say "libtorch $(libtorch_version "$TORCH_FOLDER") for ARM in ${TORCH_FOLDER/#$ROOT\//}"
}
