# lockstep::fortran: the module `lockstep`, compiled with this project's Fortran and C compilers. A .mod file is readable for
# the compiler alone that has written it, so an installation has the sources, and find_package(Lockstep) makes the target in a
# project that has enabled Fortran and C.
#
# lockstep_fortran_module(<folder of the sources>)
function(lockstep_fortran_module sources)
  add_library(lockstep_fortran STATIC EXCLUDE_FROM_ALL "${sources}/lockstep_functions.f90" "${sources}/lockstep.f90"
                                                       "${sources}/lockstep_fortran.c")
  add_library(lockstep::fortran ALIAS lockstep_fortran)
  set(modules "${CMAKE_CURRENT_BINARY_DIR}/lockstep_fortran_modules")
  set_target_properties(lockstep_fortran PROPERTIES POSITION_INDEPENDENT_CODE ON Fortran_MODULE_DIRECTORY "${modules}"
                                                    C_STANDARD 11)
  target_include_directories(lockstep_fortran PUBLIC "${modules}")
  target_link_libraries(lockstep_fortran PUBLIC lockstep::c)
endfunction()
