# Included by install_test.cmake for WAY shared, pkg_config and tarball: what packages consist of.

if(WAY STREQUAL "tarball")
  run("${LOCKSTEP_SOURCE}/scripts/package" --tarball --build "${LOCKSTEP_BUILD}" --out "${work}/out")
  file(GLOB packed "${work}/out/lockstep-*-linux-*.tar.*")
  file(MAKE_DIRECTORY "${work}/elsewhere")
  run(tar -xf "${packed}" -C "${work}/elsewhere")
  file(GLOB prefix "${work}/elsewhere/lockstep-*")
  # The first job of the README, with the libtorch that a variable names, and no compiler.
  set(environment ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH --unset=VIRTUAL_ENV --unset=CONDA_PREFIX)
  run(${environment} "LOCKSTEP_LIBTORCH=${LOCKSTEP_LIBTORCH}" "${prefix}/bin/lockstep" train mnist --data digits --nproc 2 --epochs 1
      --max-steps 3 --output "${work}/run")
  if(NOT EXISTS "${work}/run/result.json")
    message(FATAL_ERROR "The unpacked command has not trained:\n${out}")
  endif()
  run(${environment} "LOCKSTEP_LIBTORCH=${LOCKSTEP_LIBTORCH}" "${prefix}/bin/lockstep" doctor)
  if(NOT out MATCHES "installed for libtorch 2[.][0-9]+; libtorch 2[.]" OR NOT out MATCHES "LOCKSTEP_LIBTORCH")
    message(FATAL_ERROR "The doctor does not say which libtorch the command takes:\n${out}")
  endif()
  # What is named but is none, and a release for which there is no build.
  refused("LOCKSTEP_LIBTORCH=${work} names no libtorch" ${environment} "LOCKSTEP_LIBTORCH=${work}" "${prefix}/bin/lockstep" train mnist)
  file(WRITE "${work}/other/lib/libtorch_cpu.so" "")
  file(WRITE "${work}/other/build-version" "2.1.0\n")
  refused("LOCKSTEP_LIBTORCH names 2.1.0 in ${work}/other/lib" ${environment} "LOCKSTEP_LIBTORCH=${work}/other" "${prefix}/bin/lockstep" train mnist)
  file(REMOVE_RECURSE "${work}/out" "${work}/elsewhere")
  return()
endif()

install_shared("${work}/prefix")
file(RENAME "${work}/prefix" "${work}/moved")
set(prefix "${work}/moved")

if(WAY STREQUAL "pkg_config")
  find_program(pkg_config NAMES pkgconf pkg-config)
  if(NOT pkg_config)
    message(STATUS "Skipped: pkg-config is not here")
    return()
  endif()
  file(GLOB pc "${prefix}/lib*/pkgconfig/lockstep.pc" "${prefix}/lib/*/pkgconfig/lockstep.pc")
  get_filename_component(folder "${pc}" DIRECTORY)
  set(ask ${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${folder}" "${pkg_config}" "--define-variable=torch_dir=${LOCKSTEP_LIBTORCH}")
  run(${ask} --cflags --libs lockstep)
  separate_arguments(flags UNIX_COMMAND "${out}")
  run(${CXX} "${CMAKE_CURRENT_LIST_DIR}/pkg_config/app.cpp" -o "${work}/app" ${flags})
  run("${work}/app")
  if(NOT out MATCHES "1 ranks, sum 3")
    message(FATAL_ERROR "The program by pkg-config says:\n${out}")
  endif()
  run("${prefix}/bin/lockstep" run -np 2 "${work}/app")
  if(NOT out MATCHES "2 ranks, sum 9")
    message(FATAL_ERROR "The program by pkg-config says on two ranks:\n${out}")
  endif()
  file(REMOVE_RECURSE "${prefix}")
  return()
endif()

# No file of an installation names a folder of the machine that built it. (libtorch's own messages name its headers by the paths by
# which they were included; nothing opens those.)
execute_process(COMMAND sh -c "
  grep -rlF -e '${LOCKSTEP_SOURCE}' -e '${LOCKSTEP_BUILD}' '${prefix}'
  grep -rlIF -e '${LOCKSTEP_LIBTORCH}' '${prefix}'
  find '${prefix}' -type f -perm -u+x | xargs readelf -d 2>/dev/null | grep -E '(RPATH|RUNPATH)' | grep -E '([[]|:)/'"
                OUTPUT_VARIABLE found)
if(found)
  message(FATAL_ERROR "These name folders of this machine:\n${found}")
endif()

# The library exports Lockstep's names, and no others.
file(GLOB_RECURSE library "${prefix}/liblockstep-torch*.so.0")
run(nm -D --defined-only "${library}")
string(REPLACE "\n" ";" lines "${out}")
set(exported "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^[0-9a-f]+ [A-Za-z] ([^@]+).*" "\\1" name "${line}")
  if(name AND NOT name MATCHES "^(lockstep_|_Z.*8lockstep)")
    message(FATAL_ERROR "The library exports ${name}, which is not Lockstep's")
  endif()
  list(APPEND exported "${name}")
endforeach()
list(LENGTH exported count)
if(count LESS 500)
  message(FATAL_ERROR "The library exports ${count} names only")
endif()

# What the examples use is exported: their objects ask for no name of Lockstep that neither the library nor an example has.
file(GLOB_RECURSE objects "${LOCKSTEP_BUILD}/examples/*.cpp.o")
list(LENGTH objects count)
if(count LESS 30)
  message(FATAL_ERROR "Only ${count} examples are built")
endif()
list(SORT exported)
string(JOIN "\n" text ${exported})
file(WRITE "${work}/exported.txt" "${text}\n")
string(JOIN "\n" text ${objects})
file(WRITE "${work}/objects.txt" "${text}\n")
execute_process(COMMAND sh -c "
  xargs nm --defined-only < objects.txt | awk 'NF == 3 { print $3 }' > there.txt
  cat exported.txt there.txt | sort -u > known.txt
  xargs nm -u < objects.txt | awk 'NF == 2 && $2 ~ /^(lockstep_|_Z.*8lockstep)/ { print $2 }' | sort -u | comm -23 - known.txt | c++filt"
  WORKING_DIRECTORY "${work}" OUTPUT_VARIABLE lacking RESULT_VARIABLE rc)
if(NOT rc EQUAL 0 OR lacking)
  message(FATAL_ERROR "LOCKSTEP_API is missing (lockstep/core/export.h), for examples use these, which the library does not export:\n${lacking}")
endif()

set(arguments -G Ninja -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DLOCKSTEP_LIBTORCH=${LOCKSTEP_LIBTORCH}")
run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/shared" -B "${work}/build" ${arguments})
run(${CMAKE_COMMAND} --build "${work}/build")
run("${work}/build/app")
run(ldd "${work}/build/app")
if(NOT out MATCHES "liblockstep-torch[0-9.]+[.]so[.]0 => ${prefix}/" OR out MATCHES "not found")
  message(FATAL_ERROR "The program does not load the shared library:\n${out}")
endif()
# A component that there is not.
file(WRITE "${work}/unknown/CMakeLists.txt" "cmake_minimum_required(VERSION 3.22)\nproject(Unknown LANGUAGES CXX)\nfind_package(lockstep REQUIRED COMPONENTS comm coms)\n")
refused("Lockstep has no component 'coms'; there are: lockstep, activations, amp" ${CMAKE_COMMAND} -S "${work}/unknown" -B "${work}/unknown/build" ${arguments})
file(REMOVE_RECURSE "${prefix}" "${work}/build")
