// The strategy diloco. Not a public header: make_strategy() makes it.
#pragma once

#include <memory>

#include "lockstep/parallel/ddp/diloco.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {

// Each rank trains by itself, and every options.period steps DiLoCo takes an outer step; buffers of
// floating point are averaged then, of others all ranks get rank 0's. Between outer steps the model
// that is evaluated and saved is the average of the ranks' parameters and buffers, which is there
// under StrategyPlacement::whole_parameters(). A checkpoint has, beside this model and rank 0's
// inner optimizer:
//
//   diloco.safetensors         DiLoCo::state(); in the metadata "ranks", their number
//   diloco-rank-N.safetensors  what rank N has of its own: "own.NAME", its parameters and buffers
//                              within a period, and "inner.NAME", its inner optimizer, of ranks
//                              other than 0
//
// As many ranks continue from it bit for bit. Others end the period that had begun, with the
// average of the ranks, and take the inner optimizers in turn. A checkpoint of another strategy
// begins a period.
// Throws: InvalidArgument as DiLoCo for options out of range.
std::shared_ptr<Strategy> make_diloco_strategy(const DiLoCoOptions& options);

}  // namespace lockstep::inline v0
