# Installation: the library and its public headers, the lockstep command, the CMake package and the one for pkg-config.
#
#   cmake --install build/release --prefix /opt/lockstep
#
# A project then says find_package(lockstep) and links lockstep::lockstep, or a single room such as lockstep::core. The rooms of
# the command are not installed, so that nobody needs CLI11 for them. No installed file names a folder of this machine; where
# libtorch is, a link says (libexec/lockstep/torch-<minor>/libtorch). What depends on libtorch's release has that in its name, so that
# builds for several can be installed into one prefix.
#
# Components, for packages (scripts/package): lockstep_command, lockstep_libtorch (that link, or with LOCKSTEP_BUNDLE_LIBTORCH libtorch
# itself), and, which a plain installation takes where they are built, lockstep_headers, and lockstep_shared or lockstep_static.
# Included by lockstep_finish_rooms(), which has made `rooms`, the list of room targets, and LockstepShared.cmake, which has
# made `shared_rooms`, those of the shared library.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
set(build_dir "${package_dir}/torch-${LOCKSTEP_TORCH_MINOR}")
set(archive_dir "${CMAKE_INSTALL_LIBDIR}/lockstep/torch-${LOCKSTEP_TORCH_MINOR}")
set(program_dir "libexec/lockstep/torch-${LOCKSTEP_TORCH_MINOR}")

# What is not built is left out, and said: after scripts/quickstart there is the command alone, without what measures. A library, its
# headers and its package go together or not at all, for a package without its library would only fail later.
foreach(component IN ITEMS static shared headers)
  set(${component} COMPONENT lockstep_${component} EXCLUDE_FROM_ALL)
endforeach()

install(TARGETS ${rooms} lockstep_lockstep EXPORT lockstepStaticTargets ARCHIVE DESTINATION "${archive_dir}" ${static})
install(EXPORT lockstepStaticTargets NAMESPACE lockstep:: DESTINATION "${build_dir}" ${static})
install(TARGETS lockstep_shared EXPORT lockstepSharedTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" ${shared} NAMELINK_COMPONENT lockstep_headers)
install(EXPORT lockstepSharedTargets NAMESPACE lockstep:: DESTINATION "${build_dir}" ${shared})
# Rooms that users link by their own names are archives beside the shared library too.
set(apart ${rooms})
list(REMOVE_ITEM apart ${shared_rooms})
foreach(room IN LISTS apart)
  install(FILES "$<TARGET_FILE:${room}>" DESTINATION "${archive_dir}" ${shared})
endforeach()

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
  include(\"${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake\")" ${headers})

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
    if(type STREQUAL "EXECUTABLE" AND NOT is_test AND NOT target MATCHES "_test|_child|_helper|gpu-check")
      get_target_property(install_dir ${target} LOCKSTEP_INSTALL_DIR)
      if(NOT install_dir)
        set(install_dir "${CMAKE_INSTALL_BINDIR}")
      endif()
      install(TARGETS ${target} RUNTIME DESTINATION "${install_dir}" OPTIONAL COMPONENT lockstep_command)
      list(APPEND programs ${target})
    endif()
  endforeach()
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/lockstep" COMPONENT lockstep_command)

# Beside the library that tests link: for programs that are not compiled for it (docs/fake-cuda.md).
if(TARGET lockstep_fake_cuda_preload)
  install(TARGETS lockstep_fake_cuda_preload LIBRARY DESTINATION "${archive_dir}" OPTIONAL ${headers})
endif()

# Where the installed programs and the package find libtorch first.
set(libtorch_dir "${program_dir}/libtorch")
if(LOCKSTEP_BUNDLE_LIBTORCH)
  # Its headers for those who compile, and its libraries with those that came with them, such as the CUDA wheel's, but not the system's.
  install(DIRECTORY "${LOCKSTEP_TORCH_DIR}/include" DESTINATION "${libtorch_dir}" ${headers})
  install(CODE "
    set(TORCH_DIR \"${LOCKSTEP_TORCH_DIR}\")
    set(TORCH_CUDA \"${LOCKSTEP_TORCH_HAS_CUDA}\")
    set(DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${libtorch_dir}/lib\")
    include(\"${PROJECT_SOURCE_DIR}/cmake/install_libtorch.cmake\")" COMPONENT lockstep_libtorch)
else()
  install(CODE "
    set(link \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${libtorch_dir}\")
    if(EXISTS \"\${link}\" AND NOT IS_SYMLINK \"\${link}\")
      message(STATUS \"Left as it is, for it is no link: \${link}\")
    else()
      file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${program_dir}\")
      file(REMOVE \"\${link}\")
      file(CREATE_LINK \"${LOCKSTEP_TORCH_DIR}\" \"\${link}\" SYMBOLIC)
      message(STATUS \"Installing: \${link} -> ${LOCKSTEP_TORCH_DIR}\")
    endif()" COMPONENT lockstep_libtorch)
endif()

# The CMake package: lockstepConfig.cmake, which takes the folder torch-<minor> of the program's libtorch.
# Third-party packages that the exported targets name: a user of the package needs those, and no others.
set(static_packages "")
foreach(package IN ITEMS Threads OpenSSL ZLIB nlohmann_json)
  foreach(room IN LISTS rooms)
    get_target_property(libraries ${room} INTERFACE_LINK_LIBRARIES)
    if("${libraries}" MATCHES "(^|;|:)${package}::")
      list(APPEND static_packages ${package})
      break()
    endif()
  endforeach()
endforeach()
set(LOCKSTEP_ROOM_NAMES "")
foreach(room IN LISTS shared_rooms)
  get_target_property(name ${room} EXPORT_NAME)
  list(APPEND LOCKSTEP_ROOM_NAMES ${name})
endforeach()
set(LOCKSTEP_APART_NAMES "")
set(LOCKSTEP_APART_LIBRARIES "${CMAKE_DL_LIBS}")
foreach(room IN LISTS apart)
  get_target_property(name ${room} EXPORT_NAME)
  list(APPEND LOCKSTEP_APART_NAMES ${name})
endforeach()
list(SORT LOCKSTEP_ROOM_NAMES)

if(LOCKSTEP_CUDA_HEADERS)
  set(LOCKSTEP_HAS_CUDA_HEADERS ON)
else()
  set(LOCKSTEP_HAS_CUDA_HEADERS OFF)
endif()
set(generated "${CMAKE_CURRENT_BINARY_DIR}/package")
configure_file("${PROJECT_SOURCE_DIR}/cmake/lockstepBuild.cmake.in" "${generated}/lockstepBuild.cmake" @ONLY)
file(CONFIGURE OUTPUT "${generated}/libtorch.txt" CONTENT "set(TORCH_DIR \"${LOCKSTEP_TORCH_DIR}\")\n" @ONLY)  # for scripts/package
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/lockstepConfig.cmake.in" "${generated}/lockstepConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${generated}/lockstepConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
# The name that the package had: find_package(Lockstep).
file(CONFIGURE OUTPUT "${generated}/LockstepConfig.cmake" CONTENT "include(\"\${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake\")\n" @ONLY)
file(CONFIGURE OUTPUT "${generated}/LockstepConfigVersion.cmake" CONTENT "include(\"\${CMAKE_CURRENT_LIST_DIR}/lockstepConfigVersion.cmake\")\n" @ONLY)
foreach(file IN ITEMS lockstepConfig lockstepConfigVersion LockstepConfig LockstepConfigVersion)
  install(FILES "${generated}/${file}.cmake" DESTINATION "${package_dir}" ${headers})
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/cmake/LockstepTorch.cmake" "${PROJECT_SOURCE_DIR}/cmake/LockstepFortran.cmake"
        DESTINATION "${package_dir}" ${headers})
foreach(file IN ITEMS lockstep_functions.f90 lockstep.f90 lockstep_fortran.c)
  install(FILES "${PROJECT_SOURCE_DIR}/lockstep/c/fortran/${file}" DESTINATION "${CMAKE_INSTALL_DATADIR}/lockstep/fortran" ${headers})
endforeach()
install(FILES "${generated}/lockstepBuild.cmake" DESTINATION "${build_dir}" ${headers})

# The one for pkg-config, for the shared library: lockstep.pc is the release that was installed last.
set(pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
file(RELATIVE_PATH pc_prefix "/${pc_dir}" "/")
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
set(torch_flags "-isystem \${torch_dir}/include -isystem \${torch_dir}/include/torch/csrc/api/include")
set(pc_description "for C++20 and libtorch ${LOCKSTEP_TORCH_MINOR}")
set(pc_cflags "-std=c++20 -DUSE_DISTRIBUTED -DUSE_C10D_GLOO -DUSE_RPC -DUSE_TENSORPIPE -D_GLIBCXX_USE_CXX11_ABI=${LOCKSTEP_TORCH_CXX11_ABI} ${torch_flags}")
set(pc_name lockstep)
configure_file("${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in" "${generated}/lockstep.pc" @ONLY)
set(pc_description "its interface for C; with libtorch ${LOCKSTEP_TORCH_MINOR}")
set(pc_cflags "")
set(pc_name lockstep-c)
configure_file("${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in" "${generated}/lockstep-c.pc" @ONLY)
install(FILES "${generated}/lockstep.pc" "${generated}/lockstep-c.pc" DESTINATION "${pc_dir}" ${shared})
install(FILES "${generated}/lockstep.pc" DESTINATION "${pc_dir}" RENAME "lockstep-torch${LOCKSTEP_TORCH_MINOR}.pc" ${shared})

list(REMOVE_ITEM programs lockstep-tools)
lockstep_say_left_out("the command" " --target lockstep" ${programs})
lockstep_say_left_out("its compare, bench and verify" " --target lockstep-tools" lockstep-tools)
if(BUILD_SHARED_LIBS)
  lockstep_say_left_out("the libraries and headers" " --target lockstep_shared" lockstep_shared ${apart})
  set(library shared)
else()
  lockstep_say_left_out("the libraries and headers" "" ${rooms})
  set(library static)
endif()
install(CODE "
  if(lockstep_all_there AND NOT CMAKE_INSTALL_COMPONENT)
    foreach(component IN ITEMS ${library} headers)
      execute_process(COMMAND \"${CMAKE_COMMAND}\" -DCMAKE_INSTALL_COMPONENT=lockstep_\${component}
                              \"-DCMAKE_INSTALL_PREFIX=\${CMAKE_INSTALL_PREFIX}\" \"-DCMAKE_INSTALL_CONFIG_NAME=\${CMAKE_INSTALL_CONFIG_NAME}\"
                              -P \"${CMAKE_BINARY_DIR}/cmake_install.cmake\" RESULT_VARIABLE lockstep_rc)
      if(NOT lockstep_rc EQUAL 0)
        message(FATAL_ERROR \"The libraries and headers could not be installed; the reason is above.\")
      endif()
    endforeach()
  endif()")
include(LockstepManual)
