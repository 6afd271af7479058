// What the fused optimizers can be told beside torch's options.
#pragma once

namespace lockstep::optim {

struct FusedOptions {
  // Gradients in flat memory of the optimizer's own, laid out as the parameters are: one kernel
  // call over one stretch, one memset to zero them. Not with DDP, whose buckets hold the gradients
  // already. grad() is then always defined after the optimizer's own zero_grad(): a parameter that
  // a backward did not reach takes a step with a gradient of zero. If something else drops the
  // gradients (a call through torch::optim::Optimizer&, the module's zero_grad()), steps go on with
  // those that backward makes.
  bool flat_gradients = false;
};

}  // namespace lockstep::optim
