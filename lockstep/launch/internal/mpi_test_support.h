// The tests that run once for each MPI.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/launch/mpi_family.h"
#include "lockstep/launch/mpirun.h"

namespace lockstep::inline v0::launch {

// In the name of a test.
inline std::string name_of(MpiFamily family) {
  return family == MpiFamily::kOpenMpi ? "open_mpi" : "mpich";
}

// Why a test of it cannot run here; empty: it can.
inline std::string lacks_mpirun(MpiFamily family) {
  if (find_mpirun_of(family)) return "";
  return std::string("no mpirun of ") + to_string(family) + "'s: apt install " +
         mpi_package(family) + " to run this test";
}

}  // namespace lockstep::inline v0::launch
