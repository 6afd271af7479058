// The findings of `lockstep doctor` about this host.
#pragma once

#include <vector>

#include "lockstep/cli/doctor/findings.h"
#include "lockstep/cli/doctor/host.h"

namespace lockstep::inline v0::cli {

// Judges the facts. Pure.
std::vector<Finding> judge(const HostFacts& facts);

std::vector<Finding> check_host();

}  // namespace lockstep::inline v0::cli
