# Man pages and shell completion, which the built command makes of its own options when it is installed. Included by
# LockstepInstall.cmake. Where the command is not built, or is another machine's, they are left out.
if(CMAKE_CROSSCOMPILING)
  message(STATUS "Man pages and shell completion are left out of the installation: the command is another machine's")
  return()
endif()

install(CODE "
  set(COMMAND \"${CMAKE_BINARY_DIR}/bin/lockstep\")
  set(MANUAL \"${CMAKE_INSTALL_FULL_MANDIR}\")
  set(DATA \"${CMAKE_INSTALL_FULL_DATADIR}\")
  string(REPLACE \"${CMAKE_INSTALL_PREFIX}/\" \"\${CMAKE_INSTALL_PREFIX}/\" MANUAL \"\${MANUAL}\")
  string(REPLACE \"${CMAKE_INSTALL_PREFIX}/\" \"\${CMAKE_INSTALL_PREFIX}/\" DATA \"\${DATA}\")
  include(\"${PROJECT_SOURCE_DIR}/cmake/install_manual.cmake\")" COMPONENT lockstep_command)
