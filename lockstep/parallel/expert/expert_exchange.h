// The way of tokens to the ranks that have their experts, and back: what a model's LmExperts (model/lm_experts.h) calls.
//
//   LmOptions options{.initial = InitialParameters::kNone,
//                     .experts = experts_over(mesh["expert"], mesh.over({"data", "expert"}))};
//
// A layer sends: the counts, ranks * experts * 8 bytes, all-reduced once; each row [hidden_size] that an expert of
// another rank computes, there and back in forward, and the same in backward, by all_to_all with unequal parts; and 1
// byte in backward, by which ranks that are out of step are told apart. The routers' losses of a step send layers *
// (2 experts + 4) * 8 bytes, all-reduced once.
//
// An expert's rows come in the order of the ranks, and of a rank's in that of its tokens: as one process has them where
// the ranks' tokens follow each other. So experts compute with equal rows in equal order, and results are
// the same in every run.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/model/lm_experts.h"

namespace lockstep::inline v0 {

// The routes of a layer's rows from and to one rank. Pure.
struct ExpertRoutes {
  std::vector<int64_t> sends;     // rows for each rank
  std::vector<int64_t> receives;  // from each
  std::vector<int64_t> counts;    // of each of this rank's experts
  // sorted: for each row in expert order, where it is among those received; received: the inverse.
  std::vector<int64_t> sorted, received;
};
// all[r * experts + e]: rows of rank r for expert e, of all ranks alike. Ranks divide experts.
ExpertRoutes expert_routes(const std::vector<int64_t>& all, int64_t experts, int64_t rank,
                           int64_t ranks);

// `comm`'s ranks have the experts of one model, `tokens`'s a batch's tokens: those of `comm` and of whatever else the
// batch is divided by (data, context). Handles of both are kept. Capacity, where there is one, is decided by each rank
// for its own tokens; so without one alone, results are one process's. Everything is collective over them, in
// forward, and in backward where rows require grad, on all ranks or on none. A rank whose layer is another gets
// Mismatch, and so do the others.
LmExperts experts_over(const Communicator& comm, const Communicator& tokens);

}  // namespace lockstep::inline v0
