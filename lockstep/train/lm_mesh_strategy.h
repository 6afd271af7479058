// LmMeshStrategy: a language model over a mesh of several ways (products) as a strategy of the
// Trainer's.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/products/parallel_lm.h"
#include "lockstep/products/parallelism.h"
#include "lockstep/train/strategy.h"

namespace lockstep::inline v0 {

// The options of make_lm_mesh_strategy().
struct LmMeshOptions {
  // ParallelLmOptions of the same names.
  uint64_t dropout_seed = 1;
  // Called with this rank's part, before it has an optimizer.
  std::function<void(TransformerLm& part)> prepare = {};
};

// For a TransformerLm, best one that was made without values (InitialParameters::kNone): it keeps
// names and shapes, and a hook around it: its loss(), forward() with targets and scores() are
// computed by the ranks of a row together, with the same batch. A loss and its gradients are one call,
// StrategyGradients::compute(): within it the model's forward computes both, and afterwards the
// gradients are in place, times what the loss was multiplied with. There is one such call a step:
// more micro-batches take the place of accumulation. InvalidArgument: a forward with gradients
// outside of it, a second one within it, and one before the step or zero_grad() that the last one
// asks for. A GradScaler comes too late for it. Its loss is on the ranks' device, where the parts
// are moved (the model itself stays where it is), and has the parameters' type, float32 or float64;
// other types are InvalidArgument: bfloat16 products come from autocast around the forward.
// Evaluation goes through evaluation_ranks(): others evaluate the same batches together with one of
// those; ranks along expert may also evaluate batches of their own, equally many of them. The
// optimizer has the groups that it is made of, by the names of their parameters; what requires no
// gradient or is in no group stays as it is. Its options count at each step; StrategyState::load()
// makes them the checkpoint's, the learning rate included, as torch's load_state_dict() does. A
// schedule, such as the Trainer's, sets that anew. Checkpoints are in slices
// (checkpoint/divided_state.h), and open whichever way the next run divides the model.
LOCKSTEP_API std::shared_ptr<Strategy> make_lm_mesh_strategy(Parallelism how,
                                                             LmMeshOptions options = {});

// The divided model that such a strategy trains in the model's place, after set_up(), for what the
// model cannot tell. Null: the strategy is another one.
LOCKSTEP_API std::shared_ptr<ParallelLm> parallel_lm_of(const Strategy& strategy);

}  // namespace lockstep::inline v0
