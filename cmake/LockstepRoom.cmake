# lockstep_room(NAME <room>
#               SOURCES <x.cpp ...>
#               HEADERS <x.h ...>          what users may include, and neither lockstep.h nor a page nor an example names; it is
#                                          installed (cmake/install_headers.cmake)
#               DEPENDS <rooms ...>        Lockstep rooms whose headers this one may include
#               LIBRARIES <targets ...>    third-party targets
#               TESTS <x_test.cpp ...>     one test program a room: no ranks, or ranks as threads; runs under sanitizers
#               MP_TESTS <x_mp_test.cpp>   one test program a room that starts processes; not built under ThreadSanitizer
#               SANITIZED_MP <filter>      those of them, as a --gtest_filter without '-', that are quick enough for every run
#                                          under AddressSanitizer; the others are a test of the label long there
#               WAITING_MP <filter>        those of them whose processes wait for deadlines most of the time: a test of their own,
#                                          <room>_mp_waits, which ctest -j runs beside any other
#               ALONE_MP <filter>          those of them that assert times: a test of their own, <room>_mp_alone, beside which nothing runs
#               SHARDS <n>                 the cases of a test program are dealt to so many tests of ctest, <program>_part<i>, so that they run side by
#                                          side; 1 if it is not given
#               TIMEOUT <seconds>          of each of these tests; 600 if it is not given
#               TEST_DEPENDS <rooms ...>   further rooms that only the tests include
#               TORCH                      the room uses libtorch
#               MODULES                    ... and its tests its modules, optimizers or autograd: large headers are parsed once for them too
#               COLD                       its speed does not matter: compiled with -O1, which takes a third less time
#               HOT <x.cpp ...>            those of its sources whose speed does matter: compiled with -O3, each by itself
#               APART                      users link it by its own name: lockstep::lockstep is without it
#               PROGRAM)                   only Lockstep's own programs link it: it is not installed
#
# Makes the static library lockstep_<room> (alias lockstep::<room>) and the tests <room>_test, <room>_mp_test.

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(LOCKSTEP_CCACHE ccache)
  if(LOCKSTEP_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
        CCACHE_SLOPPINESS=pch_defines,time_macros ${LOCKSTEP_CCACHE})
  endif()
endif()

# Of the shared library users see what LOCKSTEP_API marks (lockstep/core/export.h). Static libraries are compiled alike, so that the
# shared one is made of the same objects.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(LOCKSTEP_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
endif()

add_library(lockstep_flags INTERFACE)
target_compile_features(lockstep_flags INTERFACE cxx_std_20)
target_compile_options(lockstep_flags INTERFACE -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False on "literal" + std::string, https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651
  target_compile_options(lockstep_flags INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects its garbage later: a tenth less time for units with libtorch's headers, a tenth more memory.
  target_compile_options(lockstep_flags INTERFACE --param=ggc-min-heapsize=600000 --param=ggc-min-expand=100)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # std::stable_sort of libstdc++ 12 calls a function that it has deprecated itself.
  target_compile_options(lockstep_flags INTERFACE -Wno-deprecated-declarations)
  # Locks are held where their annotations say so (core/thread_annotations.h).
  target_compile_options(lockstep_flags INTERFACE -Wthread-safety -Werror=thread-safety)
endif()
if(LOCKSTEP_WERROR)
  target_compile_options(lockstep_flags INTERFACE -Werror)
endif()
# No product and sum rounded once (FMA) where the source rounds twice: compilers take such instructions by themselves where a processor
# has them, and other numbers would come out. What is meant to be one says so: std::fma.
target_compile_options(lockstep_flags INTERFACE -ffp-contract=off)
# Backtraces and std::source_location print paths relative to the source tree.
target_compile_options(lockstep_flags INTERFACE "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(LOCKSTEP_FUZZ)
  # The library's own branches guide the fuzzers.
  target_compile_options(lockstep_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # False on std::optional under sanitizers, which GCC's manual says of its -Wmaybe-uninitialized itself.
    target_compile_options(lockstep_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(LOCKSTEP_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # TSan does not model std::atomic_thread_fence. The library's fences order what other atomics publish to TSan's satisfaction.
    target_compile_options(lockstep_flags INTERFACE -Wno-tsan)
  endif()
endif()

# Large headers, parsed once for every file that includes one of them: libtorch's (lockstep_libtorch.h) for rooms with libtorch,
# which take four to eight seconds a file, and those of the standard library and of JSON (lockstep_standard.h), two to three,
# for other rooms with JSON. What such a file forgets to include is found where this is off, as in the preset tidy.
option(LOCKSTEP_PRECOMPILE "Precompile large headers" ${LOCKSTEP_TOP_LEVEL})
function(lockstep_precompiled target)
  set(headers libtorch)
  if(ARGC GREATER 1)
    set(headers ${ARGV1})
  endif()
  if(LOCKSTEP_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM lockstep_${headers}_headers)
    # As the headers were compiled, programs too; g++ takes nothing else.
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
function(lockstep_precompile headers)
  if(NOT LOCKSTEP_PRECOMPILE)
    return()
  endif()
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/cmake/lockstep_${headers}.cpp" CONTENT "")
  add_library(lockstep_${headers}_headers OBJECT "${CMAKE_BINARY_DIR}/cmake/lockstep_${headers}.cpp")
  target_link_libraries(lockstep_${headers}_headers PRIVATE ${ARGN} lockstep_flags)
  target_compile_options(lockstep_${headers}_headers PRIVATE -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  target_precompile_headers(lockstep_${headers}_headers PRIVATE "${PROJECT_SOURCE_DIR}/cmake/lockstep_${headers}.h")
endfunction()

# For code that waits for the kernels of others: tests, examples, the command. After the flags of the build type.
set(LOCKSTEP_COLD_OPTIONS "$<$<CONFIG:Release>:-O1>")

define_property(GLOBAL PROPERTY LOCKSTEP_ROOMS BRIEF_DOCS "Installed rooms" FULL_DOCS "Rooms that are installed, bottom to top")
define_property(GLOBAL PROPERTY LOCKSTEP_UMBRELLA BRIEF_DOCS "Rooms of lockstep::lockstep" FULL_DOCS "Rooms that lockstep::lockstep links")

# One parse of libtorch's headers for many files; off for tools that want to see each file by itself.
option(LOCKSTEP_UNITY "Compile a room's files together" ON)
set(LOCKSTEP_TEST_ROOMS "" CACHE STRING "Rooms whose tests are built, for example core;store;comm; empty: all")
if(LOCKSTEP_BUILD_TESTS)
  add_custom_target(lockstep_tests COMMENT "Every test program")
  add_library(lockstep_test_parts OBJECT "${CMAKE_CURRENT_LIST_DIR}/lockstep_test_parts.cpp")
  target_link_libraries(lockstep_test_parts PRIVATE GTest::gtest lockstep_flags)
endif()

function(lockstep_room)
  cmake_parse_arguments(ARG "TORCH;MODULES;COLD;APART;PROGRAM" "NAME;SHARDS;TIMEOUT" "SOURCES;HOT;HEADERS;DEPENDS;LIBRARIES;TESTS;MP_TESTS;SANITIZED_MP;WAITING_MP;ALONE_MP;TEST_DEPENDS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "lockstep_room(${ARG_NAME}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  set(target lockstep_${ARG_NAME})
  set(deps)
  foreach(dep IN LISTS ARG_DEPENDS)
    list(APPEND deps lockstep_${dep})
  endforeach()

  # g++ takes no headers that were compiled for another instruction set.
  foreach(source IN LISTS ARG_SOURCES)
    get_source_file_property(own ${source} COMPILE_OPTIONS)
    if(own)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  set_source_files_properties(${ARG_HOT} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>" SKIP_UNITY_BUILD_INCLUSION ON)
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(lockstep::${ARG_NAME} ALIAS ${target})
  # A file of twenty-four sources: the templates of libtorch's headers take three seconds a file, whatever it has besides.
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${ARG_NAME} POSITION_INDEPENDENT_CODE ON
                                             UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE 24)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${deps} ${ARG_LIBRARIES} PRIVATE $<BUILD_INTERFACE:lockstep_flags>)
  if(LOCKSTEP_SANITIZE)
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
  if(NOT LOCKSTEP_TORCH_CXX11_ABI)
    target_compile_definitions(${target} PUBLIC _GLIBCXX_USE_CXX11_ABI=0)
  endif()
  if(ARG_TORCH)
    target_link_libraries(${target} PUBLIC Lockstep::torch)
  endif()
  if(ARG_COLD)
    target_compile_options(${target} PRIVATE ${LOCKSTEP_COLD_OPTIONS})
  endif()
  if(NOT ARG_PROGRAM)
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_ROOMS ${target})
  endif()
  if(NOT ARG_PROGRAM AND NOT ARG_APART)
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_UMBRELLA ${target})
  endif()
  foreach(header IN LISTS ARG_HEADERS)
    file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/${header}")
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_PUBLIC_HEADERS "${path}")
  endforeach()

  if(LOCKSTEP_BUILD_TESTS AND (NOT LOCKSTEP_TEST_ROOMS OR ARG_NAME IN_LIST LOCKSTEP_TEST_ROOMS))
    set(test_deps)
    foreach(dep IN LISTS ARG_TEST_DEPENDS)
      list(APPEND test_deps lockstep_${dep})
    endforeach()
    if(NOT ARG_SHARDS)
      set(ARG_SHARDS 1)
    endif()
    if(NOT ARG_TIMEOUT)
      set(ARG_TIMEOUT 600)
    endif()
    if(ARG_TESTS)
      lockstep_test_program(${ARG_NAME}_test SOURCES ${ARG_TESTS} LIBRARIES ${target} ${test_deps})
      lockstep_add_cases(${ARG_NAME}_test ${ARG_NAME}_test SHARDS ${ARG_SHARDS} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
    endif()
    if(ARG_MP_TESTS AND NOT LOCKSTEP_SANITIZE MATCHES "thread")
      set(test ${ARG_NAME}_mp_test)
      lockstep_test_program(${test} SOURCES ${ARG_MP_TESTS} LIBRARIES ${target} ${test_deps})
      string(JOIN ":" waiting ${ARG_WAITING_MP})
      string(JOIN ":" alone ${ARG_ALONE_MP})
      string(JOIN ":" sanitized ${ARG_SANITIZED_MP})
      string(JOIN ":" apart ${ARG_WAITING_MP} ${ARG_ALONE_MP})
      if(LOCKSTEP_SANITIZE)
        if(sanitized)
          lockstep_add_cases(${test} ${test} FILTER "${sanitized}" SHARDS ${ARG_SHARDS} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
        endif()
        if(NOT sanitized STREQUAL "*")
          lockstep_add_cases(${test}_others ${test} FILTER "-${sanitized}" PROPERTIES TIMEOUT 3600 RUN_SERIAL ON LABELS long)
        endif()
      else()
        if(NOT waiting STREQUAL "*")
          lockstep_add_cases(${test} ${test} FILTER "-${apart}" SHARDS ${ARG_SHARDS} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
        endif()
        if(waiting)
          lockstep_add_cases(${ARG_NAME}_mp_waits ${test} FILTER "${waiting}" PROPERTIES TIMEOUT 1200 PROCESSORS ${LOCKSTEP_TEST_WAITS})
        endif()
        if(alone)
          lockstep_add_cases(${ARG_NAME}_mp_alone ${test} FILTER "${alone}" PROPERTIES TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ON)
        endif()
      endif()
    endif()
  endif()
  if(ARG_TORCH)
    lockstep_precompiled(${target})
  elseif("nlohmann_json::nlohmann_json" IN_LIST ARG_LIBRARIES)
    lockstep_precompiled(${target} standard)
  endif()
  if(ARG_MODULES)
    foreach(one IN ITEMS ${ARG_NAME}_test ${ARG_NAME}_mp_test)
      if(TARGET ${one})
        lockstep_precompiled(${one})
      endif()
    endforeach()
  endif()
endfunction()

# What a test takes of the machine, in halves of a core: `ctest -j` is given twice the number of cores, and one (scripts/test).
set(LOCKSTEP_TEST_WAITS 1)  # it waits most of the time
set(LOCKSTEP_TEST_CORE 2)   # a core, and a little more now and then

# A GoogleTest program. lockstep_add_cases() makes tests of it.
function(lockstep_test_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES LOCKSTEP_TEST ON UNITY_BUILD ${LOCKSTEP_UNITY} UNITY_BUILD_BATCH_SIZE 16
                                           RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin/tests")
  target_compile_options(${name} PRIVATE ${LOCKSTEP_COLD_OPTIONS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main
                                        lockstep_test_parts lockstep_flags)
  add_dependencies(lockstep_tests ${name})
endfunction()

# lockstep_add_cases(<test> <program> [FILTER <--gtest_filter>] [SHARDS <n>] [PROPERTIES <of each test> ...])
function(lockstep_add_cases name program)
  cmake_parse_arguments(ARG "" "FILTER;SHARDS" "PROPERTIES" ${ARGN})
  set(arguments)
  if(ARG_FILTER AND NOT ARG_FILTER STREQUAL "-")
    set(arguments "--gtest_filter=${ARG_FILTER}")
  endif()
  if(NOT ARG_SHARDS OR ARG_SHARDS EQUAL 1)
    lockstep_add_test(${name} COMMAND ${program} ${arguments})
    lockstep_set_test(${name} ${ARG_PROPERTIES})
    return()
  endif()
  foreach(part RANGE 1 ${ARG_SHARDS})
    math(EXPR index "${part} - 1")
    lockstep_add_test(${name}_part${part} COMMAND ${program} ${arguments})
    lockstep_set_test(${name}_part${part} ${ARG_PROPERTIES})
    set_property(TEST ${name}_part${part} APPEND PROPERTY ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS}" "GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# add_test with what the sanitizers and the emulator want to know.
function(lockstep_add_test name)
  add_test(NAME ${name} ${ARGN})
  set(suppressions "${PROJECT_SOURCE_DIR}/tests/sanitizers")
  lockstep_set_test(${name} TIMEOUT 600 PROCESSORS ${LOCKSTEP_TEST_CORE}
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${suppressions}/tsan.supp:halt_on_error=1;LSAN_OPTIONS=suppressions=${suppressions}/lsan.supp;UBSAN_OPTIONS=print_stacktrace=1")
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT "LOCKSTEP_SKIPPED_CASES=${PROJECT_SOURCE_DIR}/tests/emulation.txt")
  endif()
endfunction()

# set_tests_properties of one test; under an emulator it has ten times the seconds.
function(lockstep_set_test name)
  set_tests_properties(${name} PROPERTIES ${ARGN})
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    get_test_property(${name} TIMEOUT seconds)
    list(FIND ARGN TIMEOUT at)
    if(NOT at EQUAL -1)
      math(EXPR seconds "${seconds} * 10")
      set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds})
    endif()
  endif()
endfunction()

# For what is installed and needs libtorch, in the folder `folder` below the prefix: in the build it takes the libtorch that it is linked
# with; installed, the one in or behind libexec/lockstep/torch-<minor version>/libtorch, or one that the loader finds.
function(lockstep_finds_libtorch target folder)
  get_target_property(minor Lockstep::torch LOCKSTEP_TORCH_MINOR)
  file(RELATIVE_PATH up "/${folder}" "/libexec/lockstep/torch-${minor}/libtorch/lib")
  set_target_properties(${target} PROPERTIES LOCKSTEP_INSTALLED ON LOCKSTEP_INSTALL_DIR "${folder}" BUILD_RPATH "${LOCKSTEP_TORCH_DIR}/lib"
                                             INSTALL_RPATH "$ORIGIN/${up}")
endfunction()

# lockstep_say_left_out(<what> <build arguments> <targets ...>): an installation says that `what` was left out where one of
# the targets is not built; lockstep_all_there is whether none was.
function(lockstep_say_left_out what targets)
  set(files "")
  foreach(target IN LISTS ARGN)
    list(APPEND files "\"$<TARGET_FILE:${target}>\"")
  endforeach()
  string(REPLACE ";" " " files "${files}")
  install(CODE "
    set(lockstep_all_there TRUE)
    foreach(file IN ITEMS ${files})
      if(NOT EXISTS \"\${file}\")
        set(lockstep_all_there FALSE)
      endif()
    endforeach()
    if(NOT lockstep_all_there)
      message(STATUS \"Left out, for not all of it is built: ${what}. For it: cmake --build ${CMAKE_BINARY_DIR}${targets}, and install again\")
    endif()")
endfunction()

# The umbrella target, and installation of the rooms, their headers and the CMake package.
function(lockstep_finish_rooms)
  get_property(rooms GLOBAL PROPERTY LOCKSTEP_ROOMS)
  get_property(umbrella GLOBAL PROPERTY LOCKSTEP_UMBRELLA)
  add_custom_target(lockstep_rooms DEPENDS ${rooms} COMMENT "Every room's library")
  add_library(lockstep_lockstep INTERFACE)
  add_library(lockstep::lockstep ALIAS lockstep_lockstep)
  set_target_properties(lockstep_lockstep PROPERTIES EXPORT_NAME lockstep)
  target_link_libraries(lockstep_lockstep INTERFACE ${umbrella})
  include(LockstepShared)
  include(LockstepInstall)
endfunction()
