// Programs that do not compile, and the line that says why: mistakes_test.py compares.
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <span>

#include "lockstep/data/loader.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/ddp/ddp.h"
#include "lockstep/train/accelerator.h"
#include "lockstep/train/trainer.h"

using namespace lockstep;
using torch::nn::Linear;

struct Rows {
  int64_t size() const { return 3; }
  data::Batch batch(std::span<const int64_t>) const { return {}; }
};
struct NoBatches {
  int64_t size() const { return 3; }
};
struct NoLoss {
  template <typename Model>
  int operator()(Model&, const data::Batch&) const {
    return 3;
  }
};

void a_tensor_is_wrapped(const at::Tensor& tensor, Communicator comm) {
  // says: DistributedDataParallel wraps a module
  DistributedDataParallel model(tensor, comm);
}

void a_tensor_is_replicated(const at::Tensor& tensor) {
  // says: DataParallel wraps a module
  DataParallel model(tensor);
}

void a_tensor_is_prepared(Accelerator& accelerator, at::Tensor tensor) {
  // says: Accelerator::prepare() takes a module's holder
  accelerator.prepare(tensor);
}

void an_unknown_option(Linear net, Communicator comm) {
  // says: bucket_size
  const DdpOptions options{.bucket_size = 3};
  DistributedDataParallel model(net, comm, options);
}

void an_unknown_argument() {
  // says: learning_rat
  TrainingArguments args{.learning_rat = 3};
}

void a_data_set_without_batches(const NoBatches& set, data::Sampler& sampler) {
  // says: Loader takes a data set with size() and a const batch(
  data::Loader loader(set, sampler);
}

void a_trainer_of_no_data_set(Linear net, Communicator comm) {
  // says: Trainer<M, D, Loss>: D is a data set with size() and a const batch(
  Trainer<Linear, NoBatches, NoLoss> trainer({.model = net, .comm = comm});
}

void a_trainer_without_a_loss(Linear net, Communicator comm) {
  // says: Trainer<M, D, Loss>: loss(model, batch) must give a LossOutput
  Trainer<Linear, Rows> trainer({.model = net, .comm = comm});
}

void a_trainer_with_another_loss(Linear net, Communicator comm) {
  // says: Trainer<M, D, Loss>: loss(model, batch) must give a LossOutput
  Trainer<Linear, Rows, NoLoss> trainer({.model = net, .comm = comm});
}
