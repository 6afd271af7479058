// Parallelism: data that says how a language model is divided among the ranks of a job, and the
// check of which ways go together (plan/refused_products.h). Pure.
//
//   Parallelism how = parse_parallelism("data=2,pipe=2,tensor=2");
//   how.zero = 1;
//   check(how, config, 8);
//
//   axis     its ranks share                             gradients averaged along it
//   data     nothing: each row of ranks has its batch    all
//   pipe     the depth: a stage of consecutive units     none
//   context  the tokens of each sequence                 all
//   expert   the experts; batches are as along data      all but the experts'
//   tensor   each layer: heads, inner columns, words     none
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/mesh/mesh_layout.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/parallel/context/context_layout.h"
#include "lockstep/plan/refused_products.h"

namespace lockstep::inline v0 {

struct LOCKSTEP_API Parallelism {
  // Axes among data, pipe, context, expert and tensor; an axis that is not named has one rank.
  // Neighbours along the last one are consecutive ranks. Put the axis that sends most (tensor)
  // there, and those that send least (pipe, data) first.
  std::vector<MeshAxis> axes = {};
  // ZeRO over the ranks that average a parameter's gradient: ZeroOptions::stage.
  int zero = 0;
  std::string schedule = "1f1b";  // the pipeline's (schedule_names())
  // The number of parts in which a step's batch is computed, kMostMicroBatches at most, also
  // without a pipeline; their gradients add up. 0: twice the stages of a pipeline, and 1 without
  // one. The loss that balances experts' load (router_aux_loss_coef) is then a mean over the parts.
  // Each part balances by itself, so it is another number than the whole batch's.
  int micro_batches = 0;
  // The number of units of each chunk of the pipeline (pipeline_cut.h). Empty: balanced by the
  // multiplications for a token, which are a layer's parameters, and the head's; embeddings and the
  // last norm count nothing.
  std::vector<int> cut = {};
  // Sequence parallelism: the rows between divided products are divided along tensor, too.
  bool divides_rows = false;
  // The way in which tokens that context divides attend to each other: blocks go round a ring, or
  // heads are exchanged.
  ContextWay context_way = ContextWay::kRing;

  static constexpr int kMostMicroBatches = 65536;

  int size_of(std::string_view axis) const;  // 1 where it is not named
  bool operator==(const Parallelism&) const = default;
};

// Parses "data=2,pipe=2,tensor=2".
// Throws: InvalidArgument for another axis, and what parse_axes() throws.
LOCKSTEP_API Parallelism parse_parallelism(std::string_view mesh);
// Returns it as it runs: with all axes of parallel_axes(), those that were not named first, with
// one rank; one open size (0) filled from `ranks`; micro_batches and cut set.
// Throws: InvalidArgument in one line (check()).
LOCKSTEP_API Parallelism resolved(Parallelism how, const LmConfig& config, int ranks);

// Returns all of parallel_axes(), those that are not among `axes` first, with one rank; an open
// size is filled.
// Throws: InvalidArgument for sizes whose product is not `ranks`.
LOCKSTEP_API std::vector<MeshAxis> with_all_axes(const std::vector<MeshAxis>& axes, int ranks);

// "data", "pipe", "context", "expert", "tensor"
LOCKSTEP_API const std::vector<std::string>& parallel_axes();

// Checks the whole. An open size (0) counts as the ranks that are left for it, and no axes as all
// ranks along data.
// Throws: InvalidArgument in one line that says what to do, before any rank sends anything: sizes
// whose product is not `ranks`; more chunks than units; heads (of a part, among the ranks of a
// context by heads, too), inner columns or experts that do not divide; fewer words than parts; too
// many micro-batches; an unknown schedule, or one that does not take so many micro-batches; a
// refused product.
LOCKSTEP_API void check(const Parallelism& how, const LmConfig& config, int ranks);

// Checks what holds for any model.
// Throws: InvalidArgument for an unknown axis, a ZeRO stage or a number of micro-batches that does
// not exist.
LOCKSTEP_API void check_ways(const Parallelism& how);

// A table of the ranks for people, in the order of the axes; every rank has one place:
//   rank  data  pipe  tensor
//      0     0     0       0
LOCKSTEP_API std::string table_of(const MeshLayout& layout);

}  // namespace lockstep::inline v0
