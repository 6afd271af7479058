// The layouts that a search looks at: meshes with the options that each has. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/plan/search/search.h"

namespace lockstep::inline v0::plan {

// The divisors of a number above 0, ascending.
std::vector<int64_t> divisors_of(int64_t number);

// A schedule with the chunks of a stage.
struct Scheduled {
  std::string name;
  int chunks = 1;
};

// A stage of ZeRO, and in groups of how many ranks; 0: of all.
struct Sharded {
  int zero = 0;
  int ranks = 0;
};

// Sizes of the axes, and what can be chosen beside them; any of each with any of the others, as
// far as check() and the refused products allow.
struct MeshOptions {
  Layout mesh;
  std::vector<int64_t> micro_batches;  // ascending
  std::vector<bool> divides_rows;
  std::vector<Scheduled> schedules;
  std::vector<Sharded> shards;
  int64_t combinations() const;
};

// All meshes of a request. Each stands once: neighbours along an axis are where request.job puts
// them, and an axis of one rank has no options of its own.
std::vector<MeshOptions> meshes_of(const ModelShape& model, const SearchRequest& request,
                                   const Machine& machine);

// The policies of a request, from the fastest to the one that takes least memory: each computes
// more than the one before.
std::vector<Activations> policies_of(const SearchRequest& request);

// check(layout, model), and the refused products, as a question.
bool allowed(const Layout& layout, const ModelShape& model);

}  // namespace lockstep::inline v0::plan
