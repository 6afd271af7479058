// LmMeshStrategy: a language model over a mesh of several ways (products) as a strategy of the Trainer's.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/products/lm_parallelism.h"
#include "lockstep/train/strategy.h"

namespace lockstep {

struct LmMeshOptions {
  // ParallelLmOptions of the same names.
  uint64_t dropout_seed = 1;
  std::function<void(TransformerLm& part)> prepare = {};
};

// For a TransformerLm, best one that was made without values (InitialParameters::kNone): it keeps names and shapes, and
// its loss(), forward() with targets and scores() are computed by the ranks of a row together, with the same batch.
// Its loss has been differentiated when it is there; backward() multiplies the gradients by what the loss was
// multiplied with. So there is one forward and one backward a step: more micro-batches take the place of accumulation,
// which is InvalidArgument. Evaluation goes through evaluation_ranks(): others evaluate
// the same batches together with one of those. For the recipes and loops of one's own: Trainer and Accelerator, which
// evaluate and save whole models, refuse it.
// Checkpoints are in slices (checkpoint/divided_state.h), and open whichever way the next run divides the model.
std::shared_ptr<Strategy> make_lm_mesh_strategy(LmParallelism how, LmMeshOptions options = {});

}  // namespace lockstep
