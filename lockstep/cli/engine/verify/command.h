// lockstep verify
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/verify/equality_matrix.h"

namespace lockstep::inline v0::engine {

struct VerifyPlan {
  std::vector<EqualityProduct> products = {};
  EqualityOptions training = {};
  std::string dtype = {};  // its name
  double tolerance = 0;
  bool repeat = false;
  std::string json = {}, markdown = {};  // files; empty: none
};

// Plans the matrix that the arguments ask for, and checks it before anything is trained.
// Throws: HelpShown, InvalidArgument.
VerifyPlan plan_verify(const Arguments& words);

// Compares every product of ways to divide a model with one process (verify/equality_matrix.h).
// Exit code 0: all hold, 1: some do not, 2: bad usage.
int verify_command(const Arguments& words);

}  // namespace lockstep::inline v0::engine
