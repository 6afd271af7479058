#include "lockstep/train/accelerator.h"

#include <unistd.h>

#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"

namespace lockstep {

Accelerator::Accelerator(const AcceleratorOptions& options) : Accelerator(init(), options) {}

Accelerator::Accelerator(Communicator comm, const AcceleratorOptions& options)
    : state_(std::make_shared<AcceleratorState>(std::move(comm), options.mixed_precision,
                                                options.gradient_accumulation_steps,
                                                options.strategy)) {}

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

}  // namespace lockstep
