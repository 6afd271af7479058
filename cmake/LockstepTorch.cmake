# Finds libtorch and makes the target Lockstep::torch. Installed beside lockstepConfig.cmake, where it does the same.
#
# Looked for in this order: LOCKSTEP_LIBTORCH (CMake or environment variable: a libtorch folder, or the `torch` folder
# of a Python wheel); in an installed Lockstep, the one of an earlier find_package(Torch), then the one that was installed
# with it; the .venv of the repository; the torch of `python3` on the PATH.
#
# The target is our own rather than the one of TorchConfig.cmake: that one demands a CUDA toolkit wherever the wheel is
# a CUDA build, although neither our headers nor the CPU path need one. docs/dependencies.md tells what a CUDA build
# needs at run time.

if(TARGET Lockstep::torch)
  return()
endif()

set(LOCKSTEP_LIBTORCH "" CACHE PATH "libtorch: its folder, or the torch folder of an installed wheel")
set(LOCKSTEP_CUDA "AUTO" CACHE STRING
    "Link the CUDA half of libtorch: AUTO (where it can be loaded), ON, OFF, LINK (what it loads is on another machine)")
set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON OFF LINK)

# C++ interfaces change between releases of libtorch: these are known. What is compiled keeps to the release that it was compiled
# with: an installed Lockstep, and with it the programs that use it.
set(_lockstep_torch_oldest 2.11)  # scripts/lib/dependencies.sh has the same two
set(_lockstep_torch_newest 2.15)
set(_lockstep_torch_wanted "libtorch ${_lockstep_torch_oldest} to ${_lockstep_torch_newest}")
# LOCKSTEP_INSTALLED_FOR: in an installed Lockstep, the releases that it was built with, such as "2.13;2.14".
if(LOCKSTEP_INSTALLED_FOR)
  list(JOIN LOCKSTEP_INSTALLED_FOR " or " _lockstep_torch_wanted)
  string(PREPEND _lockstep_torch_wanted "libtorch ")
  string(APPEND _lockstep_torch_wanted ", for which it is installed here")
endif()

function(_lockstep_try_torch dir)
  if(LOCKSTEP_TORCH_DIR OR NOT dir)
    return()
  endif()
  if(EXISTS "${dir}/include/torch/csrc/api/include/torch/torch.h" AND EXISTS "${dir}/lib/libtorch_cpu.so")
    get_filename_component(real "${dir}" REALPATH)
    set(LOCKSTEP_TORCH_DIR "${real}" PARENT_SCOPE)
  else()
    set(_lockstep_torch_tried "${_lockstep_torch_tried}\n  ${dir}" PARENT_SCOPE)
  endif()
endfunction()

# The libraries that the loader would not find for `library`, as a list.
function(_lockstep_missing_libraries library out)
  set(missing "")
  execute_process(COMMAND ldd "${library}" OUTPUT_VARIABLE lines ERROR_QUIET RESULT_VARIABLE rc)
  if(rc EQUAL 0)
    string(REGEX MATCHALL "[^ \t\n]+ => not found" missing "${lines}")
    list(TRANSFORM missing REPLACE " => not found" "")
    list(REMOVE_DUPLICATES missing)
  endif()
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# Inside find_package(lockstep) a missing libtorch is "not found", with its reason; elsewhere an error.
set(_lockstep_torch_error "")
set(_lockstep_torch_tried "")
set(LOCKSTEP_TORCH_DIR "")
_lockstep_try_torch("${LOCKSTEP_LIBTORCH}")
_lockstep_try_torch("$ENV{LOCKSTEP_LIBTORCH}")
if(_lockstep_torch_tried AND NOT LOCKSTEP_TORCH_DIR)
  set(_lockstep_torch_error
      "LOCKSTEP_LIBTORCH names no libtorch (a folder with include/ and lib/libtorch_cpu.so):${_lockstep_torch_tried}")
endif()
if(NOT LOCKSTEP_TORCH_DIR AND NOT _lockstep_torch_error)
  if(LOCKSTEP_INSTALLED_FOR)
    _lockstep_try_torch("${TORCH_INSTALL_PREFIX}")
    if(Torch_DIR)
      get_filename_component(_lockstep_dir "${Torch_DIR}/../../.." ABSOLUTE)
      _lockstep_try_torch("${_lockstep_dir}")
    endif()
    foreach(_lockstep_dir IN LISTS LOCKSTEP_INSTALLED_LIBTORCH)
      _lockstep_try_torch("${_lockstep_dir}")
    endforeach()
  endif()
  file(GLOB _lockstep_venvs "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch"
       "${CMAKE_CURRENT_LIST_DIR}/../.venv/lib/python3*/site-packages/torch")
  foreach(_lockstep_dir IN LISTS _lockstep_venvs)
    _lockstep_try_torch("${_lockstep_dir}")
  endforeach()
  if(NOT LOCKSTEP_TORCH_DIR)
    find_program(LOCKSTEP_PYTHON NAMES python3 python)
    if(LOCKSTEP_PYTHON)
      execute_process(
        COMMAND ${LOCKSTEP_PYTHON} -c
                "import sys; sys.path[:] = [p for p in sys.path if p]; import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE _lockstep_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      _lockstep_try_torch("${_lockstep_dir}")
    endif()
  endif()
  if(NOT LOCKSTEP_TORCH_DIR)
    set(_lockstep_torch_error
        "Lockstep needs ${_lockstep_torch_wanted}. Set LOCKSTEP_LIBTORCH to its folder")
    if(LOCKSTEP_INSTALLED_FOR)
      string(APPEND _lockstep_torch_error ": a Python wheel's folder torch is one.")
    else()
      string(APPEND _lockstep_torch_error ", or run scripts/quickstart, which installs the wheel into .venv.")
    endif()
    if(_lockstep_torch_tried)
      string(APPEND _lockstep_torch_error " Looked in:${_lockstep_torch_tried}")
    endif()
  endif()
endif()

set(LOCKSTEP_TORCH_VERSION "")
set(LOCKSTEP_TORCH_HAS_CUDA OFF)
set(LOCKSTEP_TORCH_CXX11_ABI 1)
if(LOCKSTEP_TORCH_DIR)
  foreach(_lockstep_header IN ITEMS headeronly/version.h csrc/api/include/torch/version.h)  # the second: until 2.8
    if(NOT LOCKSTEP_TORCH_VERSION AND EXISTS "${LOCKSTEP_TORCH_DIR}/include/torch/${_lockstep_header}")
      file(STRINGS "${LOCKSTEP_TORCH_DIR}/include/torch/${_lockstep_header}" _lockstep_lines
           REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX REPLACE "[^0-9;]+" "" LOCKSTEP_TORCH_VERSION "${_lockstep_lines}")
      string(REPLACE ";" "." LOCKSTEP_TORCH_VERSION "${LOCKSTEP_TORCH_VERSION}")
    endif()
  endforeach()
  string(REGEX MATCH "^[0-9]+[.][0-9]+" _lockstep_minor "${LOCKSTEP_TORCH_VERSION}")

  # What its libraries lack matters where they are loaded: with LINK that is elsewhere.
  set(_lockstep_missing "")
  if(NOT LOCKSTEP_CUDA STREQUAL "LINK")
    _lockstep_missing_libraries("${LOCKSTEP_TORCH_DIR}/lib/libtorch_cpu.so" _lockstep_missing)
  endif()
  string(REPLACE ";" ", " _lockstep_missing "${_lockstep_missing}")
  set(_lockstep_known TRUE)
  if(LOCKSTEP_INSTALLED_FOR)
    if(NOT _lockstep_minor IN_LIST LOCKSTEP_INSTALLED_FOR)
      set(_lockstep_known FALSE)
    endif()
  elseif(NOT _lockstep_minor OR _lockstep_minor VERSION_LESS _lockstep_torch_oldest
         OR _lockstep_minor VERSION_GREATER _lockstep_torch_newest)
    set(_lockstep_known FALSE)
  endif()
  # Which of libstdc++'s two strings it was compiled with: what links it must be too.
  if(EXISTS "${LOCKSTEP_TORCH_DIR}/lib/libc10.so")
    file(STRINGS "${LOCKSTEP_TORCH_DIR}/lib/libc10.so" _lockstep_new REGEX "7__cxx1112basic_string" LIMIT_COUNT 1)
    file(STRINGS "${LOCKSTEP_TORCH_DIR}/lib/libc10.so" _lockstep_old REGEX "^_ZN3c10.*RKSs" LIMIT_COUNT 1)
    if(_lockstep_old AND NOT _lockstep_new)
      set(LOCKSTEP_TORCH_CXX11_ABI 0)
    endif()
  endif()
  if(NOT _lockstep_known)
    set(_lockstep_torch_error
        "Lockstep needs ${_lockstep_torch_wanted} (C++ interfaces change between releases); ${LOCKSTEP_TORCH_DIR} is '${LOCKSTEP_TORCH_VERSION}' ('' is one without a version header). Set LOCKSTEP_LIBTORCH to another one.")
  elseif(NOT LOCKSTEP_CUDA MATCHES "^(AUTO|ON|OFF|LINK)$")
    set(_lockstep_torch_error "LOCKSTEP_CUDA is '${LOCKSTEP_CUDA}'; it takes AUTO, ON, OFF or LINK")
  elseif(_lockstep_missing)
    set(_lockstep_torch_error
        "libtorch at ${LOCKSTEP_TORCH_DIR} cannot be loaded, for it lacks ${_lockstep_missing}. A CUDA build needs two small libraries even on a machine without a GPU: pip install 'cuda-toolkit[cudart,cupti]' of the version that its METADATA names (scripts/quickstart does). Programs for another machine: LOCKSTEP_CUDA=LINK.")
  elseif(EXISTS "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cuda.so" AND NOT LOCKSTEP_CUDA STREQUAL "OFF")
    if(NOT LOCKSTEP_CUDA STREQUAL "LINK")
      _lockstep_missing_libraries("${LOCKSTEP_TORCH_DIR}/lib/libtorch_cuda.so" _lockstep_missing)
      string(REPLACE ";" ", " _lockstep_missing "${_lockstep_missing}")
    endif()
    if(NOT _lockstep_missing)
      set(LOCKSTEP_TORCH_HAS_CUDA ON)
    elseif(LOCKSTEP_CUDA STREQUAL "AUTO")
      message(STATUS "libtorch's CUDA half is left out: it lacks ${_lockstep_missing}")
    else()
      set(_lockstep_torch_error
          "LOCKSTEP_CUDA is ON, but libtorch_cuda.so lacks ${_lockstep_missing}. Programs for another machine: LOCKSTEP_CUDA=LINK.")
    endif()
  elseif(LOCKSTEP_CUDA MATCHES "^(ON|LINK)$")
    set(_lockstep_torch_error "LOCKSTEP_CUDA is ${LOCKSTEP_CUDA}, but ${LOCKSTEP_TORCH_DIR} is a CPU build of libtorch")
  endif()
endif()

if(_lockstep_torch_error)
  if(LOCKSTEP_INSTALLED_FOR AND CMAKE_FIND_PACKAGE_NAME)
    set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
    set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE "${_lockstep_torch_error}")
    return()
  endif()
  message(FATAL_ERROR "${_lockstep_torch_error}")
endif()
message(STATUS "libtorch ${LOCKSTEP_TORCH_VERSION}: ${LOCKSTEP_TORCH_DIR} (CUDA: ${LOCKSTEP_TORCH_HAS_CUDA})")

add_library(Lockstep::torch INTERFACE IMPORTED GLOBAL)
set_target_properties(Lockstep::torch PROPERTIES LOCKSTEP_TORCH_MINOR "${_lockstep_minor}" LOCKSTEP_TORCH_HAS_CUDA "${LOCKSTEP_TORCH_HAS_CUDA}"
                                            LOCKSTEP_TORCH_CXX11_ABI "${LOCKSTEP_TORCH_CXX11_ABI}")
target_include_directories(Lockstep::torch SYSTEM INTERFACE
  "${LOCKSTEP_TORCH_DIR}/include" "${LOCKSTEP_TORCH_DIR}/include/torch/csrc/api/include")
# What TorchConfig.cmake would define; the headers of torch/csrc/distributed hide themselves without them.
target_compile_definitions(Lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
set(_lockstep_libs "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cpu.so,${LOCKSTEP_TORCH_DIR}/lib/libc10.so")
if(LOCKSTEP_TORCH_HAS_CUDA)
  string(APPEND _lockstep_libs
         ",${LOCKSTEP_TORCH_DIR}/lib/libtorch_cuda.so,${LOCKSTEP_TORCH_DIR}/lib/libc10_cuda.so")
endif()
find_package(Threads REQUIRED)
target_link_libraries(Lockstep::torch INTERFACE
  # --no-as-needed: operators register themselves when their library is loaded, so it must be, used or not. One item,
  # for CMake is free to reorder separate ones.
  "-Wl,--push-state,--no-as-needed,${_lockstep_libs},--pop-state"
  # The CUDA build's own dependencies are found at run time by the wheel's rpath, not at link time.
  "-Wl,--allow-shlib-undefined" Threads::Threads
  # Programs find libtorch where it was when they were linked. What Lockstep installs itself looks elsewhere (LockstepInstall.cmake).
  "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_INSTALLED>>>:-Wl,-rpath,${LOCKSTEP_TORCH_DIR}/lib>")
if(NOT LOCKSTEP_TORCH_CXX11_ABI)
  target_compile_definitions(Lockstep::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=0)
endif()
