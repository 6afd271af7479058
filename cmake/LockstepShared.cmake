# The shared library liblockstep-torch<libtorch's minor version>.so.<SOVERSION>: the objects of the installed rooms, which are not
# compiled anew. It exports what LOCKSTEP_API marks (lockstep/core/export.h), and nothing that is not Lockstep's.
# Included by lockstep_finish_rooms(), which has made `umbrella`, the rooms of lockstep::lockstep.

# The interface may change with each 0.x release; the number changes with it.
set(LOCKSTEP_SOVERSION 0)

# libtorch's release: C++ interfaces change between them, so there is a library for each.
get_target_property(LOCKSTEP_TORCH_MINOR Lockstep::torch LOCKSTEP_TORCH_MINOR)

# What lockstep::lockstep links, and the interface for C, which a C++ program has no use for.
set(shared_rooms ${umbrella})
if(TARGET lockstep_c)
  list(APPEND shared_rooms lockstep_c)
endif()
set(archives "")
set(outside "")
foreach(room IN LISTS shared_rooms)
  list(APPEND archives "$<TARGET_FILE:${room}>")
  get_target_property(libraries ${room} LINK_LIBRARIES)
  foreach(library IN LISTS libraries)
    if(NOT library MATCHES "^lockstep_|lockstep_flags")
      list(APPEND outside "${library}")
    endif()
  endforeach()
endforeach()
list(REMOVE_DUPLICATES outside)
list(JOIN archives "," all_archives)

file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/cmake/lockstep_shared.cpp" CONTENT "")
add_library(lockstep_shared SHARED "${CMAKE_BINARY_DIR}/cmake/lockstep_shared.cpp")
if(NOT LOCKSTEP_BUILD_TESTS AND NOT BUILD_SHARED_LIBS)
  set_target_properties(lockstep_shared PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
set_target_properties(lockstep_shared PROPERTIES
  OUTPUT_NAME "lockstep-torch${LOCKSTEP_TORCH_MINOR}" VERSION "${LOCKSTEP_SOVERSION}.${PROJECT_VERSION_MINOR}.${PROJECT_VERSION_PATCH}"
  SOVERSION ${LOCKSTEP_SOVERSION} EXPORT_NAME lockstep LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
lockstep_finds_libtorch(lockstep_shared "${CMAKE_INSTALL_LIBDIR}")
add_dependencies(lockstep_shared ${shared_rooms})
set(exports "${PROJECT_SOURCE_DIR}/cmake/lockstep_exports.map")
set_property(TARGET lockstep_shared PROPERTY LINK_DEPENDS ${archives} "${exports}")
target_link_options(lockstep_shared PRIVATE "LINKER:--version-script,${exports}" "LINKER:-z,defs")
# One item, for CMake is free to reorder separate ones.
target_link_libraries(lockstep_shared PRIVATE "-Wl,--push-state,--whole-archive,${all_archives},--pop-state" ${outside} lockstep_flags)
# What a program that includes our headers needs besides. (They name nlohmann::json; what is in the library stays inside.)
target_link_libraries(lockstep_shared INTERFACE Lockstep::torch nlohmann_json::nlohmann_json Threads::Threads)
target_compile_features(lockstep_shared INTERFACE cxx_std_20)
target_include_directories(lockstep_shared INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
