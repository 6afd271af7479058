#include "lockstep/train/accelerator.h"

#include <unistd.h>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/train/settings.h"

namespace lockstep::inline v0 {

namespace {

optim::StepSpec spec_of(const AcceleratorOptions& options) {
  const settings::Takes precisions = settings::one_of("no|bf16|fp16");
  settings::check_value("Accelerator: mixed_precision", options.mixed_precision, precisions);
  settings::check_value("Accelerator: gradient_accumulation_steps",
                        options.gradient_accumulation_steps, settings::at_least(1));
  return {.precision = options.mixed_precision == "bf16"   ? optim::Precision::kBFloat16
                       : options.mixed_precision == "fp16" ? optim::Precision::kFloat16
                                                           : optim::Precision::kFloat32,
          .accumulation = options.gradient_accumulation_steps};
}

}  // namespace

Accelerator::Accelerator(const AcceleratorOptions& options) : Accelerator(init(), options) {}

Accelerator::Accelerator(Communicator comm, const AcceleratorOptions& options)
    : state_(std::make_shared<AcceleratorState>(std::move(comm), spec_of(options), options.strategy,
                                                options.timeline)) {}

at::Tensor Accelerator::gather(const at::Tensor& tensor) {
  return comm().all_gather(tensor.contiguous());
}

at::Tensor Accelerator::gather_for_metrics(const at::Tensor& tensor) {
  // Ranks that work on one batch have the same.
  at::Tensor all = state_->data_ranks.all_gather(tensor.contiguous());
  const LoaderPlace* place = state_->current();
  if (place == nullptr || !place->at_last() || place->last_step_samples >= all.size(0)) return all;
  return all.narrow(0, 0, place->last_step_samples);
}

at::Tensor Accelerator::reduce(const at::Tensor& tensor, const std::string& reduction) {
  if (reduction != "sum" && reduction != "mean")
    throw InvalidArgument("Accelerator::reduce: '" + reduction +
                          "' is unknown; choose sum or mean");
  const at::Tensor result = tensor.detach().clone();
  comm().all_reduce(result, reduction == "sum" ? ReduceOp::kSum : ReduceOp::kAvg);
  return result;
}

void Accelerator::wait_for_everyone() {
  comm().barrier();
}

void Accelerator::print(const std::string& line) const {
  if (is_main_process()) write_all(STDOUT_FILENO, line + "\n");
}

}  // namespace lockstep::inline v0
