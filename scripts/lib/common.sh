# shellcheck shell=bash
# Shared by the scripts: where the repository is, how they speak, how they build. Sourced, not run.
# The caller has `set -euo pipefail`.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"

# One line an argument.
say() { printf '%s\n' "$@"; }
# What went wrong and what to do; exit code 2 for what the user can put right, 1 for a failed build or test.
stop() {
  local code=$1
  shift
  printf '%s\n' "$@" >&2
  exit "$code"
}

# `set -e` ends a script without a word. A command that fails where none was expected to is named, so that nobody sees a prompt and no reason.
set -E
trap 'status=$?; printf "%s: line %s: this failed with exit code %s: %s\n" "${BASH_SOURCE[0]}" "$LINENO" "$status" "$BASH_COMMAND" >&2' ERR

seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# Compile jobs: one a core, but no more than memory holds (a file that includes torch.h takes up to 1.5 GB).
build_jobs() {
  local cores memory_kb by_memory
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo 2>/dev/null || echo 0)
  by_memory=$((memory_kb / 1700000))
  if [ "$memory_kb" -gt 0 ] && [ "$by_memory" -lt "$cores" ]; then
    cores=$((by_memory > 1 ? by_memory : 1))
  fi
  echo "${LOCKSTEP_JOBS:-$cores}"
}

# Configures build/PRESET with the libtorch in TORCH_FOLDER, unless it is up to date: configure PRESET [cmake arguments...]
# Ninja itself reconfigures when a CMake file changes; this covers a first time, another libtorch, a moved clone, and a
# launcher that has come since.
configure() {
  local preset=$1 build="$ROOT/build/$1" key
  shift
  key="$ROOT|$(cksum <"$ROOT/CMakePresets.json")|$TORCH_FOLDER|${CXX:-}|${CXXFLAGS:-}|$(command -v mpirun || true)|$({ ls "$ROOT/build/mpi-abi/bin" 2>/dev/null || true; } | cksum)|$*"
  if [ -f "$build/build.ninja" ] && [ "$(cat "$build/configured.txt" 2>/dev/null)" = "$key" ]; then
    return
  fi
  if [ -f "$build/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$build/CMakeCache.txt"; then
    say "build/$preset belongs to another place; starting it anew."
    rm -rf "$build/CMakeCache.txt" "$build/CMakeFiles"
  fi
  say "Configuring build/$preset"
  mkdir -p "$build"
  local log="$build/configure.log"
  if ! (cd "$ROOT" && cmake --preset "$preset" -DLOCKSTEP_LIBTORCH="$TORCH_FOLDER" "$@") >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    stop 1 "" "Configuring failed. The whole log: $log"
  fi
  printf '%s' "$key" >"$build/configured.txt"
}

# Builds targets with one line of progress: build PRESET TARGET...
# The output of the build goes to build/PRESET/build.log; on failure its end is shown.
build() {
  local preset=$1 dir="$ROOT/build/$1" start=$EPOCHREALTIME status=0
  shift
  local log="$dir/build.log"
  : >"$log"
  # NINJA_STATUS gives the lines that the filter reads a form that no compiler prints.
  NINJA_STATUS='@%f/%t@ ' ninja -C "$dir" -j "$(build_jobs)" "$@" 2>&1 </dev/null | build_progress "$preset" "$log" ||
    status=${PIPESTATUS[0]}
  if [ "$status" != 0 ]; then
    local first
    first=$(grep -n -m1 '^FAILED: ' "$log" | cut -d: -f1 || true)
    if [ -n "$first" ]; then
      # The compile command, which follows the FAILED line, is long and seldom wanted.
      sed -n "$first,\$p" "$log" | awk 'length($0) < 1000' | head -n 40 >&2
    else
      tail -n 40 "$log" >&2
    fi
    stop 1 "" "The build failed. The whole log: $log"
  fi
  if grep -q '^@' "$log"; then
    say "Built build/$preset in $(seconds_since "$start") s"
  fi
}

# time_left DONE TOTAL SECONDS: ", about 3 min left", as if the other steps took as long as those that SECONDS have done; nothing
# while there are too few to tell.
time_left() {
  if [ "$1" -lt 5 ] || [ "$3" -lt 10 ]; then return; fi
  local left=$(($3 * ($2 - $1) / $1))
  if [ "$left" -lt 60 ]; then printf ', less than a minute left'; else printf ', about %d min left' $(((left + 30) / 60)); fi
}

build_progress() {
  local preset=$1 log=$2 line counts left last=0 terminal=0 start=$SECONDS
  if [ -t 1 ]; then terminal=1; fi
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$log"
    if [[ $line =~ ^@([0-9]+)/([0-9]+)@\ (.*) ]]; then
      if [ "$terminal" = 0 ] && [ $((SECONDS - last)) -lt 15 ]; then continue; fi
      last=$SECONDS
      left=$(time_left "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" $((SECONDS - start)))
      counts="${BASH_REMATCH[1]}/${BASH_REMATCH[2]}$left"
      if [ "$terminal" = 1 ]; then
        printf '\r\033[K  building %s  %s' "$counts" "$(short_step "${BASH_REMATCH[3]}")"
      else
        say "  building $counts  $(short_step "${BASH_REMATCH[3]}")"
      fi
    fi
  done
  if [ "$terminal" = 1 ]; then printf '\r\033[K'; fi
}

# "Building CXX object lockstep/core/CMakeFiles/core.dir/Unity/x.o" -> "lockstep/core"
short_step() {
  local step=${1#Building CXX object }
  step=${step%%/CMakeFiles/*}
  printf '%.60s' "$step"
}
