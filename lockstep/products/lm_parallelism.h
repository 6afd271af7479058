// LmParallelism: how a language model is divided among the ranks of a job, as data; and the one
// place that says which ways go together. Pure.
//
//   LmParallelism how = parse_parallelism("data=2,pipe=2,tensor=2");
//   how.zero = 1;
//   check(how, config, 8);
//
//   axis     what its ranks share                                        whose gradients are averaged along it
//   data     nothing: each row of ranks has its own batch                all
//   pipe     the depth: consecutive units, a stage a rank                none
//   context  the tokens of each sequence                                 all
//   expert   the experts; each rank has its own batch, as along data     all but the experts'
//   tensor   each layer: heads, inner columns, words                     none
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/mesh/mesh_layout.h"
#include "lockstep/model/lm_config.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep {

struct LmParallelism {
  // Axes among data, pipe, context, expert and tensor; those that are not named have one rank.
  // Neighbours along the last one are consecutive ranks: put the axis that sends most (tensor)
  // there, and those that send least (pipe, data) first.
  std::vector<MeshAxis> axes = {};
  // ZeRO over the ranks that average a parameter's gradient: ZeroOptions::stage.
  int zero = 0;
  std::string schedule = "1f1b";  // of the pipeline (schedule_names())
  // A step's batch goes in so many parts, kMostMicroBatches at most; also without a pipeline, where
  // their gradients add up. 0: with a pipeline twice its stages, else 1. The loss that balances
  // experts' load (router_aux_loss_coef) is then a mean over the parts: each balances by itself,
  // which is another number than the whole batch's.
  int micro_batches = 0;
  // How many units each chunk of the pipeline has (pipeline_cut.h). Empty: balanced by the
  // multiplications that a token takes, which are a layer's parameters, and the head's; embeddings
  // and the last norm count nothing.
  std::vector<int> cut = {};
  // Sequence parallelism: the rows between divided products are divided along tensor, too.
  bool divides_rows = false;
  // How the tokens that context divides attend to each other: blocks go round, or heads are
  // exchanged.
  ContextWay context_way = ContextWay::kRing;

  static constexpr int kMostMicroBatches = 65536;

  int size_of(std::string_view axis) const;  // 1 where it is not named
  bool operator==(const LmParallelism&) const = default;
};

// "data=2,pipe=2,tensor=2".
// Throws: InvalidArgument for another axis, and what parse_axes() throws.
LmParallelism parse_parallelism(std::string_view mesh);
// As it is run: all axes of parallel_axes(), those that were not named first, in one rank; one open
// size (0) filled from `ranks`; micro_batches and cut set.
// Throws: InvalidArgument in one line (check()).
LmParallelism resolved(LmParallelism how, const LmConfig& config, int ranks);

// All of parallel_axes(), those that are not among `axes` first, in one rank; an open size is
// filled.
// Throws: InvalidArgument for sizes whose product is not `ranks`.
std::vector<MeshAxis> with_all_axes(const std::vector<MeshAxis>& axes, int ranks);

// "data", "pipe", "context", "expert", "tensor"
const std::vector<std::string>& parallel_axes();

// Which two ways do not go together, and why; those that are not listed do.
struct RefusedProduct {
  std::string first,
      second;  // axes, or "zero 2", "zero 3", "divided rows", "dropout of attention", "tied embeddings"
  std::string why;
};
const std::vector<RefusedProduct>& refused_products();

// An open size (0) counts as what `ranks` leave for it, and no axes as all ranks along data.
// Throws: InvalidArgument in one line that says what to do, before anybody sends anything: sizes
// whose product is not `ranks`; more chunks than units; heads (of a part, among the ranks of a
// context by heads, too), inner columns or experts that do not divide; fewer words than parts; too
// many micro-batches; a schedule that is none, or does not take so many micro-batches; a refused
// product.
void check(const LmParallelism& how, const LmConfig& config, int ranks);

// What holds for any model: throws InvalidArgument for an axis that is none, a ZeRO stage or a
// number of micro-batches that makes no sense.
void check_ways(const LmParallelism& how);

// A table of the ranks, for people, in the order of the axes; every rank has one place:
//   rank  data  pipe  tensor
//      0     0     0       0
std::string table_of(const MeshLayout& layout);

}  // namespace lockstep
