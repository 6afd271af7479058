// The axes of a recipe's mesh.
#pragma once

#include <string_view>

#include "lockstep/mesh/mesh_layout.h"

namespace lockstep::internal {

// Whose ranks share one copy of the parameters; the others have data alone.
inline constexpr std::string_view kShardAxis = "shard";

// Whether a strategy has copies that ranks share.
inline bool divides_parameters(std::string_view strategy) {
  return strategy == "zero3" || strategy == "fsdp";
}

}  // namespace lockstep::internal
