// search(): the fastest layouts of a model on so many ranks of a machine that fit into its memory,
// and why the others lose. Pure.
//
//   plan::SearchRequest request{.ranks = 512};
//   request.job.global_batch = 512;
//   const plan::SearchResult found = plan::search(model, request, machine, stack);
//   found.best.front().layout;  // the fastest
//   found.best[1].loses;        // "exposed averages of gradients 9 %"
//
// All sizes of the axes that divide are looked at, all stages of ZeRO, micro-batches, schedules
// with their chunks, activation policies, and divided rows; of them what check(layout, model) and
// the refused products (plan/refused_products.h) allow. Memory is computed before time, and time
// only where a bound from below says that a layout may be among the best: a job of 10^5 ranks takes
// seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/estimate/estimate.h"

namespace lockstep::inline v0::plan {

// The request of a search: fields that are set are fixed, and the rest is searched.
struct LOCKSTEP_API SearchRequest {
  int ranks = 1;
  // The settings that all layouts share: global batch, sequence, precision, masters, bytes of
  // gradients, optimizer, the order of the axes. Its other fields are not read.
  Layout job = {};
  std::optional<int> zero = {};
  std::optional<std::string> schedule = {};
  std::optional<int> chunks = {};
  std::optional<int64_t> micro_batch = {};
  std::optional<Activations> activations = {};
  std::optional<bool> divides_rows = {};
  // Only what `lockstep train lm` runs: interleaved with its usual chunks; activations kept or
  // recomputed; the whole batch at once where ranks are along data alone.
  bool as_trained = false;
  // How many are kept: the best of each mesh and ZeRO stage, and not all variants of one mesh.
  size_t top = 10;
};

// A layout that was computed.
struct LOCKSTEP_API Candidate {
  Layout layout;
  Estimate estimate;
  std::string loses;  // why_slower() than the best; "" for the best itself
};

// The result of a search.
struct LOCKSTEP_API SearchResult {
  std::vector<Candidate> best;  // that fit, fastest first
  // That would be faster than the best, or, where nothing fits, that lack least; three at most.
  std::vector<Candidate> too_large;
  int64_t layouts = 0;  // the combinations of sizes that divide, and of what is open beside them
  int64_t weighed = 0;  // of how many the memory was computed
  int64_t timed = 0;    // of how many the time
};

// Throws InvalidArgument in one line: no layout divides the model and its batch among so many
// ranks (not that none fits: `best` is empty then); what check() of the model, the machine and the
// stack throws.
LOCKSTEP_API SearchResult search(const ModelShape& model, const SearchRequest& request,
                                 const Machine& machine, const Stack& stack);

// The refused product that this layout of this model would be, in one line; "" where it is none.
LOCKSTEP_API std::string refusal_of(const Layout& layout, const ModelShape& model);

// The reason why `other` is slower than `best`: the largest excess as a share of its own step,
// "exposed all-gather of parameters 12 %", "bubble 9 %"; "stage 0 does not fit by 3.1 GiB" where it
// does not fit; "as fast", or "as fast, and takes 14.7 GiB more", below half a percent.
LOCKSTEP_API std::string why_slower(const Estimate& best, const Estimate& other);

// "stage 0 does not fit by 3.1 GiB"; "" where it fits.
LOCKSTEP_API std::string lack_of(const Estimate& estimate);

// A time of a step below which no estimate() of the layout can be: its products at the best share
// of the peak.
LOCKSTEP_API double least_step(const ModelShape& model, const Layout& layout,
                               const Machine& machine, const Stack& stack);

}  // namespace lockstep::inline v0::plan
