// The rows, by source.
#pragma once

#include <vector>

#include "lockstep/plan/rows/published_rows.h"

namespace lockstep::inline v0::plan::internal {

std::vector<PublishedRow> megatron_rows();
std::vector<PublishedRow> nvidia_rows();
std::vector<PublishedRow> foundry_rows();
std::vector<PublishedRow> titan_rows();
std::vector<PublishedRow> fugaku_rows();

constexpr double kGiB = 1024.0 * 1024 * 1024, kMiB = 1024.0 * 1024;

// Megatron's order of axes: the pipeline is outermost.
inline std::vector<std::string> pipe_first() {
  return {"pipe", "data", "expert", "context", "tensor"};
}

}  // namespace lockstep::inline v0::plan::internal
