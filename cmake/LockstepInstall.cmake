# Installation: every room's library and public headers, the lockstep command, and the CMake package.
#
#   cmake --install build/release --prefix /opt/lockstep
#
# A project then says find_package(Lockstep) and links lockstep::lockstep, or a single room such as lockstep::core. The rooms of
# the command are not installed, so that nobody needs CLI11 for them.
# Included by lockstep_finish_rooms(), which has made `rooms`, the list of room targets.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Lockstep")

# What is not built is left out, and said: after scripts/quickstart there is the command alone, without what measures. The libraries, headers and
# package go together or not at all, for a package without its libraries would only fail later: so they are a component of
# their own, which the whole installation installs if it is all there.
set(library_component COMPONENT lockstep_library EXCLUDE_FROM_ALL)

install(TARGETS ${rooms} lockstep_lockstep EXPORT LockstepTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" ${library_component})
install(EXPORT LockstepTargets NAMESPACE lockstep:: DESTINATION "${package_dir}" ${library_component})

# Of the headers those that users may include (install_headers.cmake). They keep their place: lockstep/comm/communicator.h is
# included by that name, here and there.
get_property(public_headers GLOBAL PROPERTY LOCKSTEP_PUBLIC_HEADERS)
install(CODE "
  set(SOURCE \"${PROJECT_SOURCE_DIR}\")
  set(DESTINATION \"${CMAKE_INSTALL_INCLUDEDIR}\")
  if(NOT IS_ABSOLUTE \"\${DESTINATION}\")
    set(DESTINATION \"\${CMAKE_INSTALL_PREFIX}/\${DESTINATION}\")
  endif()
  set(ROOTS lockstep/lockstep.h ${public_headers})
  include(\"${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake\")" ${library_component})

# Programs of the rooms, such as the lockstep command (but no tests). A target's property LOCKSTEP_INSTALL_DIR says where if
# not beside the command.
file(GLOB_RECURSE room_files LIST_DIRECTORIES FALSE "${PROJECT_SOURCE_DIR}/lockstep/*/CMakeLists.txt")
set(programs "")
foreach(file IN LISTS room_files)
  get_filename_component(dir "${file}" DIRECTORY)
  get_property(targets DIRECTORY "${dir}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(is_test ${target} LOCKSTEP_TEST)
    if(type STREQUAL "EXECUTABLE" AND NOT is_test AND NOT target MATCHES "_test|_child|_helper")
      get_target_property(install_dir ${target} LOCKSTEP_INSTALL_DIR)
      if(NOT install_dir)
        set(install_dir "${CMAKE_INSTALL_BINDIR}")
      endif()
      install(TARGETS ${target} RUNTIME DESTINATION "${install_dir}" OPTIONAL)
      list(APPEND programs ${target})
    endif()
  endforeach()
endforeach()

# Beside the library that tests link: for programs that are not compiled for it (docs/fake-cuda.md).
if(TARGET lockstep_fake_cuda_preload)
  install(TARGETS lockstep_fake_cuda_preload LIBRARY DESTINATION lib/lockstep OPTIONAL ${library_component})
endif()

# Third-party packages that the exported targets name: a user of the package needs those, and no others.
set(LOCKSTEP_FIND_DEPENDENCIES "")
foreach(package IN ITEMS Threads OpenSSL ZLIB nlohmann_json)
  foreach(room IN LISTS rooms)
    get_target_property(libraries ${room} INTERFACE_LINK_LIBRARIES)
    if("${libraries}" MATCHES "(^|;|:)${package}::")
      string(APPEND LOCKSTEP_FIND_DEPENDENCIES "find_dependency(${package})\n")
      break()
    endif()
  endforeach()
endforeach()
set(LOCKSTEP_PACKAGE_TORCH "${LOCKSTEP_TORCH_DIR}")
if(LOCKSTEP_BUNDLE_LIBTORCH)
  # Beside the programs, whose rpath leads there: its headers for those who compile, and its libraries with those that came
  # with them, such as the CUDA wheel's, but not the system's.
  set(LOCKSTEP_PACKAGE_TORCH "\${PACKAGE_PREFIX_DIR}/libexec/lockstep/libtorch")
  install(DIRECTORY "${LOCKSTEP_TORCH_DIR}/include" DESTINATION libexec/lockstep/libtorch ${library_component})
  install(CODE "
    set(TORCH_DIR \"${LOCKSTEP_TORCH_DIR}\")
    set(TORCH_CUDA \"${LOCKSTEP_TORCH_HAS_CUDA}\")
    set(DESTINATION \"\${CMAKE_INSTALL_PREFIX}/libexec/lockstep/libtorch/lib\")
    include(\"${PROJECT_SOURCE_DIR}/cmake/install_libtorch.cmake\")")
endif()
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/LockstepConfig.cmake.in" "${CMAKE_CURRENT_BINARY_DIR}/LockstepConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/LockstepConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/LockstepConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/LockstepConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake"
        DESTINATION "${package_dir}" ${library_component})
list(REMOVE_ITEM programs lockstep-tools)
lockstep_say_left_out("the command" " --target lockstep" ${programs})
lockstep_say_left_out("its compare, bench and verify" " --target lockstep-tools" lockstep-tools)
lockstep_say_left_out("the libraries and headers" "" ${rooms})
install(CODE "
  if(lockstep_all_there)
    execute_process(COMMAND \"${CMAKE_COMMAND}\" -DCMAKE_INSTALL_COMPONENT=lockstep_library
                            \"-DCMAKE_INSTALL_PREFIX=\${CMAKE_INSTALL_PREFIX}\" \"-DCMAKE_INSTALL_CONFIG_NAME=\${CMAKE_INSTALL_CONFIG_NAME}\"
                            -P \"${CMAKE_BINARY_DIR}/cmake_install.cmake\" RESULT_VARIABLE lockstep_rc)
    if(NOT lockstep_rc EQUAL 0)
      message(FATAL_ERROR \"The libraries and headers could not be installed; the reason is above.\")
    endif()
  endif()")
include(LockstepManual)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep")
