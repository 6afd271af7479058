// Ways of parallelism that do not go together: the one table that the planner, which must not
// propose them, and products/parallelism.h, which refuses them, both read. Data; pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// Two ways that do not go together, and the reason. All other pairs do.
struct RefusedProduct {
  // Axes, or "zero 2", "zero 3", "divided rows", "dropout of attention", "tied embeddings".
  // Embeddings count as tied where the ends of a pipeline share them.
  std::string first, second;
  std::string why;
};
// All of them.
LOCKSTEP_API const std::vector<RefusedProduct>& refused_products();

// The first of them whose two ways are both among `used`; nullptr: all go together.
LOCKSTEP_API const RefusedProduct* refused_among(const std::vector<std::string>& used);

// "zero 3 and tied embeddings do not go together: ...": what a message says of it.
LOCKSTEP_API std::string to_string(const RefusedProduct& product);

}  // namespace lockstep::inline v0
