// Whether tests that take minutes are to run: LOCKSTEP_LONG_TESTS is 1, as under scripts/test --full.
#pragma once

#include "lockstep/core/env.h"

namespace lockstep::inline v0::testing {

inline bool long_tests() {
  return env_flag(process_env(), "LOCKSTEP_LONG_TESTS", false);
}

}  // namespace lockstep::inline v0::testing
