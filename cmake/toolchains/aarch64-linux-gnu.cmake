# 64-bit ARM (Linux), compiled on a machine of another kind by Debian's cross compiler (g++-aarch64-linux-gnu), and tested there by QEMU's
# user-mode emulation (qemu-user). scripts/test --full arm installs both and what follows; docs/building.md tells more.
#
#   LOCKSTEP_AARCH64_ROOT   where the other libraries lie: Debian's arm64 packages, unpacked
#   LOCKSTEP_LIBTORCH       libtorch's wheel for ARM, unpacked
#
# Which processor is emulated says the variable QEMU_CPU of the environment. Programs that tests start are emulated too where the kernel
# knows how (binfmt_misc); where it does not, those tests fail.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc CACHE STRING "")
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING "")

set(LOCKSTEP_AARCH64_ROOT "${CMAKE_CURRENT_LIST_DIR}/../../build/aarch64-root" CACHE PATH "Libraries for 64-bit ARM")
get_filename_component(_lockstep_root "${LOCKSTEP_AARCH64_ROOT}" ABSOLUTE)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LOCKSTEP_AARCH64_ROOT)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH "${_lockstep_root}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# OpenSSL has headers in both, and includes one from the other.
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES "${_lockstep_root}/usr/include/aarch64-linux-gnu")
set(CMAKE_C_STANDARD_INCLUDE_DIRECTORIES "${CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES}")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
