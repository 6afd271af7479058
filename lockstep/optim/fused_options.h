// The options of fused optimizers besides torch's.
#pragma once

namespace lockstep::inline v0::optim {

// The options of a fused optimizer besides torch's.
struct FusedOptions {
  // Keeps gradients in flat memory of the optimizer's own, laid out like the parameters: one kernel
  // call over one stretch, and one memset to zero them. Not with DDP, whose buckets already hold
  // the gradients. grad() is then always defined after the optimizer's own zero_grad(): a parameter
  // that a backward did not reach takes a step with a gradient of zero. If other code drops the
  // gradients (a call through torch::optim::Optimizer&, the module's zero_grad()), steps use the
  // gradients that backward makes.
  bool flat_gradients = false;
};

}  // namespace lockstep::inline v0::optim
