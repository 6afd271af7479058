# Finds libtorch and makes the target Lockstep::torch.
#
# Looked for in this order: LOCKSTEP_LIBTORCH (CMake or environment variable: a libtorch folder, or the `torch` folder
# of a Python wheel), the repository's .venv, the torch of `python3` on the PATH.
#
# The target is our own rather than the one of TorchConfig.cmake: that one demands a CUDA toolkit wherever the wheel is
# a CUDA build, although neither our headers nor the CPU path need one. This file is installed beside
# LockstepConfig.cmake and serves both.

if(TARGET Lockstep::torch)
  return()
endif()

set(_lockstep_torch_tried "")
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

set(LOCKSTEP_TORCH_DIR "")
set(LOCKSTEP_LIBTORCH "" CACHE PATH "libtorch: its folder, or the torch folder of an installed wheel")
_lockstep_try_torch("${LOCKSTEP_LIBTORCH}")
_lockstep_try_torch("$ENV{LOCKSTEP_LIBTORCH}")
if(NOT LOCKSTEP_TORCH_DIR)
  file(GLOB _lockstep_venv_torch "${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  foreach(_dir IN LISTS _lockstep_venv_torch)
    _lockstep_try_torch("${_dir}")
  endforeach()
endif()
if(NOT LOCKSTEP_TORCH_DIR)
  find_program(LOCKSTEP_PYTHON NAMES python3 python)
  if(LOCKSTEP_PYTHON)
    execute_process(
      COMMAND ${LOCKSTEP_PYTHON} -c
              "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    _lockstep_try_torch("${_dir}")
  endif()
endif()
if(NOT LOCKSTEP_TORCH_DIR)
  message(FATAL_ERROR "Lockstep needs libtorch 2.13. Set LOCKSTEP_LIBTORCH to its folder, or run scripts/quickstart, "
                      "which installs the wheel into .venv. Looked in:${_lockstep_torch_tried}")
endif()

file(STRINGS "${LOCKSTEP_TORCH_DIR}/include/torch/headeronly/version.h" _lockstep_torch_version_lines
     REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE "[^0-9;]+" "" LOCKSTEP_TORCH_VERSION "${_lockstep_torch_version_lines}")
string(REPLACE ";" "." LOCKSTEP_TORCH_VERSION "${LOCKSTEP_TORCH_VERSION}")
message(STATUS "libtorch ${LOCKSTEP_TORCH_VERSION}: ${LOCKSTEP_TORCH_DIR}")

add_library(Lockstep::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(Lockstep::torch SYSTEM INTERFACE
  "${LOCKSTEP_TORCH_DIR}/include" "${LOCKSTEP_TORCH_DIR}/include/torch/csrc/api/include")
# What TorchConfig.cmake would define; the headers of torch/csrc/distributed hide themselves without them.
target_compile_definitions(Lockstep::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
# --no-as-needed: operators register themselves when their library is loaded, so it must be, used or not.
set(_lockstep_torch_libs "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cpu.so" "${LOCKSTEP_TORCH_DIR}/lib/libc10.so")
set(LOCKSTEP_TORCH_HAS_CUDA OFF)
if(EXISTS "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cuda.so")
  set(LOCKSTEP_TORCH_HAS_CUDA ON)
  list(APPEND _lockstep_torch_libs "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cuda.so"
       "${LOCKSTEP_TORCH_DIR}/lib/libc10_cuda.so")
endif()
find_package(Threads REQUIRED)
target_link_libraries(Lockstep::torch INTERFACE
  "-Wl,--push-state,--no-as-needed" ${_lockstep_torch_libs} "-Wl,--pop-state"
  # The CUDA build's own dependencies are found at run time by the wheel's rpath, not at link time.
  "-Wl,--allow-shlib-undefined" "-Wl,-rpath,${LOCKSTEP_TORCH_DIR}/lib" Threads::Threads)
