// DiLoCo: ranks train separately for H steps, and an outer optimizer then takes one step along the
// average of what they have changed. Ranks communicate once in H steps: for slow links between
// them, and hosts far apart. (Douillard et al., "DiLoCo: Distributed Low-Communication Training of
// Language Models", 2023, arXiv:2311.08105.)
//
//   DiLoCo diloco(model, comm, {.period = 500});    // all ranks get rank 0's parameters
//   for (...) {
//     inner.zero_grad();
//     loss(net(batch)).backward();                   // not averaged: net is not wrapped
//     inner.step();                                  // AdamW in the paper
//     if (diloco.step()) save_and_evaluate();        // now all ranks have the same parameters
//   }
//
// With P, the parameters after the last outer step, and p, those of a rank now, an outer step is
//
//   d  =  the ranks' average of P - p               (the outer gradient)
//   v <-  momentum v + d                            (v is d in the first outer step)
//   P <-  P - lr (d + momentum v)                   (Nesterov; without it: P - lr v)
//   p <-  P
//
// which are the updates of torch.optim.SGD(lr, momentum, nesterov=True) with d as the gradient.
// With lr 1 and momentum 0, P becomes the average of the ranks' parameters, as
// average_parameters() computes it up to rounding. The inner optimizers' states stay as they are on
// each rank, and so do buffers, such as BatchNorm's running statistics: average those, or send
// rank 0's, before the model is evaluated or saved. The strategy diloco (train/strategy.h) does
// that, and saves what a run needs to continue within a period. P has float32 where p has 16 bits, and d is then
// counted from what p was after the last outer step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/flat/named_tensors.h"

namespace lockstep::inline v0 {

// The defaults are the paper's.
struct DiLoCoOptions {
  int64_t period = 500;   // H, inner steps
  double lr = 0.7;        // of the outer optimizer
  double momentum = 0.9;  // likewise; 0 to less than 1
  bool nesterov = true;   // otherwise the momentum is that of SGD
};

// Lifetime: it keeps the parameters' tensors, not the model. Optimizers may move their memory, as
// set_data() does.
// Cost: memory for two copies of the parameters (one without momentum), in float32 where they have
// 16 bits; for each outer step an all_reduce of the parameters' bytes.
// Thread-safety: one thread, the communicator's.
class LOCKSTEP_API DiLoCo {
 public:
  // All ranks get rank 0's parameters. A tensor that is there under several names counts once.
  // Collective: all ranks call it.
  // Throws: InvalidArgument for options out of range, and for parameters that are not of floating
  // point or share memory; Mismatch, on all ranks, that names the first parameter or option in
  // which ranks differ.
  DiLoCo(const NamedTensors& parameters, Communicator comm, const DiLoCoOptions& options = {});
  // The same for a module, or a holder of one.
  template <ModuleOrHolder M>
  DiLoCo(M& module, Communicator comm, const DiLoCoOptions& options = {})
      : DiLoCo(parameters_of(module), std::move(comm), options) {}
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // Called after each step of the inner optimizer. Every period-th call takes an outer step, and
  // returns true.
  // Collective: all ranks, equally often.
  bool step(Communicator::Site site = Communicator::Site::current());

  // Takes an outer step now, and begins a new period: at the end of training, for example.
  // Collective: all ranks call it.
  // Throws: the communicator's errors; the parameters are then those of the last outer step.
  void outer_step(Communicator::Site site = Communicator::Site::current());

  int64_t inner_steps() const { return inner_steps_; }  // since the last outer step
  int64_t outer_steps() const { return outer_steps_; }  // so far
  int64_t bytes() const;                                // of the outer parameters and the momentum

  // The outer optimizer by name, for a file: "outer.NAME" has the parameters of the last outer step,
  // "momentum.NAME" the momentum, "steps" (int64, [2]) the inner and the outer steps. Views, equal
  // on all ranks. To resume a run, save them with each rank's inner optimizer and, within a period,
  // each rank's parameters, which are its own then.
  NamedTensors state() const;
  // Continues from a state. Without `own` the model's parameters do not change, and the state must
  // have been taken behind an outer step. `own`: this rank's parameters by name, as they were when
  // the state was taken; they are copied into the model.
  // Collective: all ranks, with the same state, and all with `own` or all without.
  // Throws, on all ranks, with nothing changed: InvalidArgument that names the first tensor that is
  // missing, is left over, or has another shape or type, or says that the state was taken within a
  // period; Mismatch where the ranks' states differ.
  void load_state(const NamedTensors& state, const NamedTensors& own = {});
  // Begins anew with the model's parameters as they are now: no momentum, and no step taken.
  // Collective: all ranks, with equal parameters.
  // Throws: Mismatch, on all ranks, that names the first parameter in which ranks differ; nothing
  // has changed then.
  void begin_anew();

 private:
  NamedTensors parameters() const;
  std::string objection(const NamedTensors& state, const NamedTensors& own) const;

  Communicator comm_;
  DiLoCoOptions options_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> outer_;
  std::vector<at::Tensor> momentum_;  // empty where options_.momentum is 0
  int64_t inner_steps_ = 0;
  int64_t outer_steps_ = 0;
};

}  // namespace lockstep::inline v0
