# shellcheck shell=bash
# The formats of scripts/package, which sources this file and sets: formats, site, version, minors and torches (of each of builds),
# out, work.

# check_tools: before anything is built.
check_tools() {
  local command
  if [[ " ${formats[*]} " == *" deb "* ]]; then
    for command in dpkg-buildpackage dh; do
      has_command "$command" || stop 2 "package: --deb needs $command (apt-get install dpkg-dev debhelper)"
    done
  fi
  if [ "$site" = 1 ] && ! has_command doxygen; then
    stop 2 "package: the documentation's site needs doxygen (apt-get install doxygen); --no-site packs without it"
  fi
}

# install_site PREFIX: unless --no-site.
install_site() {
  if [ "$site" = 0 ]; then return 0; fi
  mkdir -p "$1/share/doc/lockstep"
  cp -r "$work/site" "$1/share/doc/lockstep/html"
}

# install_into PREFIX: everything but libtorch, of every build.
install_into() {
  local one part log=$work/install.log
  for one in "${builds[@]}"; do
    for part in command shared headers; do
      cmake --install "$one" --prefix "$1" --component "lockstep_$part" >>"$log" 2>&1 ||
        stop 1 "$(tail -n 5 "$log")" "Installing from $one failed; is it built? The whole log: $log"
    done
  done
  [ -x "$1/bin/lockstep" ] || stop 1 "package: $one/bin/lockstep is not built"
  cp README.md "$1/share/doc/lockstep/"
}

# strip_below PREFIX: without what only debuggers want.
strip_below() {
  local file
  while IFS= read -r -d '' file; do
    case $file in
      *.a) strip --strip-debug --enable-deterministic-archives "$file" ;;
      *) if [ "$(head -c 4 "$file" | tail -c 3)" = ELF ]; then strip --strip-unneeded "$file"; fi ;;
    esac
  done < <(find "$1" -type f -print0)
}

# check_no_paths PREFIX: nothing depends on a folder of the machine that built it. (libtorch's own messages name its headers by the
# paths by which they were included, which nothing opens.)
check_no_paths() {
  local found torch file
  found=$(grep -rlF --exclude=README.md -e "$ROOT" $(printf -- '-e %s ' "${builds[@]}") "$1" || true)
  for torch in "${torches[@]}"; do found+=$(grep -rlIF -e "$torch" "$1" || true); done
  while IFS= read -r -d '' file; do
    if readelf -d "$file" 2>/dev/null | grep -E '\((RPATH|RUNPATH)\)' | grep -qE '(\[|:)/'; then found+=" $file"; fi
  done < <(find "$1" -type f \( -perm -u+x -o -name '*.so*' \) -print0)
  if [ -n "$found" ]; then stop 1 "package: these name folders of this machine, and so cannot be moved:" "$found"; fi
}

architecture() { uname -m; }

make_tarball() {
  local name file
  name="lockstep-$version-torch$(IFS=-; echo "${minors[*]}")-linux-$(architecture)"
  install_into "$work/$name"
  install_site "$work/$name"
  strip_below "$work/$name"
  check_no_paths "$work/$name"
  local -a options=(--sort=name --owner=0 --group=0 --numeric-owner "--mtime=@$SOURCE_DATE_EPOCH" -C "$work")
  if has_command zstd; then
    file=$out/$name.tar.zst
    tar "${options[@]}" -cf - "$name" | zstd -q -f -10 -o "$file"
  else
    file=$out/$name.tar.gz
    tar "${options[@]}" -cf - "$name" | gzip -9n >"$file"
  fi
  say "$file"
}

make_deb() {
  local soversion minor folder=$work/deb/lockstep-$version log=$work/deb.log
  soversion=$(sed -n 's/^set(LOCKSTEP_SOVERSION \([0-9]*\))$/\1/p' cmake/LockstepShared.cmake)
  mkdir -p "$folder/debian"
  cp -r packaging/debian/. "$folder/debian/"
  rm "$folder"/debian/*.in
  local libraries="" depends=""
  for minor in "${minors[@]}"; do
    local name=liblockstep-torch$minor-$soversion
    libraries+=$(sed "s/@MINOR@/$minor/g; s/@SOVERSION@/$soversion/g" packaging/debian/library.in)$'\n\n'
    depends+="${depends:+, }$name (= \${binary:Version})"
    echo "usr/lib/liblockstep-torch$minor.so.*" >"$folder/debian/$name.install"
    sed "s/@MINOR@/$minor/g; s/@SOVERSION@/$soversion/g" packaging/debian/library.symbols.in >"$folder/debian/$name.symbols"
    c_functions >>"$folder/debian/$name.symbols"
    sed "s/@PACKAGE@/$name/" packaging/debian/library.lintian-overrides.in >"$folder/debian/$name.lintian-overrides"
  done
  local maintainer="${DEBFULLNAME:-Lockstep developers} <${DEBEMAIL:-lockstep@localhost}>"
  awk -v libraries="$libraries" -v depends="$depends" -v maintainer="$maintainer" \
    '/^@LIBRARIES@$/ { printf "%s", libraries; next } { sub(/@LIBRARY_DEPENDS@/, depends); sub(/@MAINTAINER@/, maintainer); print }' \
    packaging/debian/control.in | cat -s >"$folder/debian/control"
  printf 'lockstep (%s) unstable; urgency=medium\n\n  * Version %s.\n\n -- %s  %s\n' \
    "$version" "$version" "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >"$folder/debian/changelog"
  install_into "$folder/staged/usr"
  install_site "$folder/staged/usr"
  rm "$folder/staged/usr/share/doc/lockstep/LICENSE"
  check_no_paths "$folder/staged"
  # Where Debian's zsh looks.
  if [ -d "$folder/staged/usr/share/zsh/site-functions" ]; then
    mv "$folder/staged/usr/share/zsh/site-functions" "$folder/staged/usr/share/zsh/vendor-completions"
  fi
  local part
  for part in man bash-completion zsh fish; do
    if [ -d "$folder/staged/usr/share/$part" ]; then echo "usr/share/$part" >>"$folder/debian/lockstep.install"; fi
  done
  if [ "$site" = 0 ]; then
    sed -i '/^Package: lockstep-doc$/,/^$/d' "$folder/debian/control"
    rm "$folder"/debian/lockstep-doc.*
  fi
  # libtorch alone, without what else lies beside it, such as a libgomp that is a Debian package's as well.
  mkdir "$work/libtorch"
  ln -s "${torches[0]}"/lib/libtorch_*.so "${torches[0]}"/lib/libc10*.so "$work/libtorch/"
  (cd "$folder" && LOCKSTEP_TORCH_LIBS=$work/libtorch dpkg-buildpackage -b -us -uc -d) >"$log" 2>&1 ||
    stop 1 "$(tail -n 20 "$log")" "dpkg-buildpackage failed. The whole log: $log"
  cp "$work"/deb/*.deb "$work"/deb/*.changes "$work"/deb/*.buildinfo "$out/"
  say "$out"/*lockstep*.deb
  if has_command lintian; then
    # Who packs says who that is, by DEBFULLNAME and DEBEMAIL; a package for one's own machines needs no address.
    local -a suppressed=()
    if [ -z "${DEBEMAIL:-}" ]; then suppressed=(--suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog); fi
    lintian --allow-root --fail-on error,warning "${suppressed[@]}" "$out"/lockstep_"$version"_*.changes || stop 1 "package: lintian has objections, above"
  else
    say "lintian is not here, and so did not look at them (apt-get install lintian)"
  fi
}

# The C functions as lines of a symbols file.
c_functions() {
  awk '/^lockstep_[a-z0-9_]+ / { print " " $1 "@Base " $2 }' lockstep/c/lockstep_c.symbols
}

make_wheel() {
  local prefix=$work/wheel one
  install_into "$prefix"
  for one in "${builds[@]}"; do
    if [ -n "$(sed -n 's/^LOCKSTEP_TORCH_PYTHON:INTERNAL=//p' "$one/CMakeCache.txt")" ]; then
      cmake --install "$one" --prefix "$prefix" --component lockstep_python >>"$work/install.log" 2>&1 ||
        stop 1 "package: $one/python is not built; the whole log: $work/install.log"
    else
      say "The backend for torch.distributed is left out of the wheel: $one has none."
    fi
  done
  strip_below "$prefix"
  check_no_paths "$prefix"
  local python=python3
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
  "$python" packaging/wheel/make_wheel.py --prefix "$prefix" --version "$version" --out "$out" --builds "${minors[@]}"
}
