// A training job as `lockstep plan` plans it: from its flags to the layouts, and what becomes of
// them. Decides; reads the files that the flags name, and writes nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/plan/flags.h"
#include "lockstep/plan/search/search.h"
#include "lockstep/plan/what_if/what_if.h"

namespace lockstep::inline v0::cli {

// The layout that is shown, under another machine or with a slow rank.
struct Variation {
  std::string what;  // "links between hosts at 50 % of their bandwidth"
  plan::Estimate estimate;
  // The fastest layout then, where all are searched and it is another one.
  std::optional<plan::Candidate> fastest = {};
};

struct JobPlan {
  plan::ModelShape model;
  plan::Machine machine;
  plan::Stack stack;
  plan::FlopConvention convention;
  plan::SearchRequest request;
  std::optional<plan::Candidate> one = {};  // the layout that was asked for, whether it fits or not
  plan::SearchResult found = {};            // of a search
  double seconds = 0;                       // that the search took
  std::vector<Variation> variations = {};
  std::optional<plan::Goodput> goodput = {};
  bool in_place = false;
  std::optional<plan::Cost> cost = {};
  double tokens = 0, price = 0;

  // The layout that the rest is about: the one that was asked for, or the best; nullptr where
  // nothing fits.
  const plan::Candidate* shown() const;
  // The tokens a second of all ranks together, with what failures cost.
  double tokens_per_second(const plan::Candidate& candidate) const;
};

// Throws: UsageError and InvalidArgument in one line: a missing flag; a model, machine, stack or
// convention that does not exist, with the nearest name; an impossible mesh.
JobPlan plan_job(const PlanFlags& flags, const PlanParser& parser);

// "data=8,pipe=4,tensor=2", as --mesh and `lockstep train lm --mesh` take it.
std::string mesh_text(const plan::Layout& layout);

// Reads --mesh into the sizes and the order of a layout's axes. An axis without a number has the
// ranks that are left; `ranks` 0: they are the mesh's own. "shard", inside of data, is a group of
// ranks that has the whole of what ZeRO divides.
// Throws: UsageError in one line.
void read_mesh(const std::string& text, int ranks, plan::Layout* layout);

// "between=0.5", "inside=40GB/s" applied to a machine; `what` says it in words.
// Throws: UsageError in one line.
plan::Machine with_slow_link(const plan::Machine& machine, const std::string& text,
                             std::string* what);

}  // namespace lockstep::inline v0::cli
