#include "lockstep/parallel/logical/logical_ranks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <bit>
#include <mutex>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/hooks/thread_generator.h"

namespace lockstep {
namespace {

constexpr uint64_t kApart = 0x9e3779b97f4a7c15;  // an odd factor keeps the streams' seeds apart

uint64_t draw() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

}  // namespace

LogicalRanks::LogicalRanks(Communicator comm, std::shared_ptr<torch::nn::Module> model, int count)
    : comm_(std::move(comm)), model_(std::move(model)), count_(count) {
  if (count < 1 || !std::has_single_bit(static_cast<unsigned>(count)))
    throw InvalidArgument("LogicalRanks: " + std::to_string(count) +
                          " logical ranks are no power of two, which their tree needs");
  if (count % comm_.size() != 0)
    throw InvalidArgument("LogicalRanks: " + std::to_string(count) +
                          " logical ranks cannot be shared equally by " +
                          std::to_string(comm_.size()) + " ranks; start a power of two up to " +
                          std::to_string(count));
  buffers_ = to_named_tensors(model_->named_buffers());
  NamedTensors everything = parameters_of(*model_);
  everything.insert(everything.end(), buffers_.begin(), buffers_.end());
  check_same_on_all_ranks(comm_, everything);
  broadcast_tensors(comm_, everything);

  const at::Tensor seed = at::zeros({1}, at::kLong);
  if (comm_.rank() == 0) seed.fill_(static_cast<int64_t>(draw() >> 1));
  comm_.broadcast(seed, 0);
  const auto base = static_cast<uint64_t>(seed.item<int64_t>());
  streams_.resize(static_cast<size_t>(count / comm_.size()));
  for (size_t i = 0; i < streams_.size(); ++i) {
    const auto rank = static_cast<uint64_t>(comm_.rank()) * streams_.size() + i;
    // The CPU generator looks at 32 bits of its seed.
    streams_[i] = at::detail::createCPUGenerator((base + rank * kApart) >> 32);
  }

  std::map<at::ScalarType, Flat> flats;
  for (const auto& [name, parameter] : parameters_of(*model_)) {
    if (!parameter.requires_grad()) continue;
    Flat& flat = flats[parameter.scalar_type()];
    flat.parameters.push_back(parameter);
    flat.offsets.push_back(flat.numel);
    flat.numel += parameter.numel();
  }
  const int64_t ranks = comm_.size();
  for (auto& [dtype, flat] : flats) {
    flat.numel = (flat.numel + ranks - 1) / ranks * ranks;
    flats_.push_back(std::move(flat));
  }
}

std::vector<at::Tensor> LogicalRanks::forward(
    const std::function<std::vector<at::Tensor>()>& compute) {
  if (complete())
    throw InvalidArgument("LogicalRanks: this rank has " + std::to_string(own()) +
                          " batches a step; synchronize() comes before the next");
  if (done_ == 0 && model_->is_training()) keep_buffers();
  const at::Generator& stream = streams_[static_cast<size_t>(done_)];
  const hooks::ThreadGenerator here([&stream]() -> const at::Generator& { return stream; });
  return compute();
}

void LogicalRanks::keep_buffers() {
  const at::NoGradGuard no_grad;
  kept_.clear();
  for (const auto& [name, buffer] : buffers_) kept_.push_back(buffer.clone());
}

at::Tensor LogicalRanks::leaf_of(Flat& flat) {
  at::Tensor leaf = flat.sum.spare();
  if (!leaf.defined()) leaf = at::zeros({flat.numel}, flat.parameters[0].options());
  for (size_t i = 0; i < flat.parameters.size(); ++i) {
    const at::Tensor& parameter = flat.parameters[i];
    const at::Tensor place =
        flat::window(leaf, flat.offsets[i], parameter.sizes(), parameter.strides());
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined())
      flat::move_into(place, gradient);
    else
      place.zero_();
    gradient = at::Tensor();
  }
  return leaf;
}

void LogicalRanks::backward(const at::Tensor& loss) {
  if (complete())
    throw InvalidArgument("LogicalRanks: this rank has " + std::to_string(own()) +
                          " batches a step, and this is one more");
  loss.backward();
  const at::NoGradGuard no_grad;
  for (Flat& flat : flats_) {
    flat.sum.add(leaf_of(flat));
    if (flat.mean.defined()) flat.sum.give(std::move(flat.mean));
    flat.mean = at::Tensor();
  }
  // Those of logical rank 0 remain. Not before backward, which may look at them.
  if (!kept_.empty()) {
    if (first() + done_ == 0)
      keep_buffers();
    else
      for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].second.copy_(kept_[i]);
  }
  ++done_;
}

void LogicalRanks::synchronize() {
  if (!complete())
    throw InvalidArgument("LogicalRanks: " + std::to_string(done_) + " of this rank's " +
                          std::to_string(own()) + " batches have been through backward()");
  const Stopwatch watch(waiting_);
  const at::NoGradGuard no_grad;
  for (Flat& flat : flats_) {
    flat.mean = flat.sum.take();
    tree_all_reduce(comm_, flat.mean);
    flat.mean.div_(count_);
    for (size_t i = 0; i < flat.parameters.size(); ++i) {
      const at::Tensor& parameter = flat.parameters[i];
      parameter.mutable_grad() =
          flat::window(flat.mean, flat.offsets[i], parameter.sizes(), parameter.strides());
    }
  }
  if (!kept_.empty()) broadcast_tensors(comm_, buffers_);
  kept_.clear();
  done_ = 0;
}

void LogicalRanks::leave_out() {
  for (Flat& flat : flats_) flat.sum.clear();
  kept_.clear();
  done_ = 0;
}

at::Tensor LogicalRanks::random_states() const {
  std::vector<at::Tensor> rows;
  for (const at::Generator& stream : streams_) rows.push_back(stream.get_state());
  return at::stack(rows);
}

void LogicalRanks::set_random_states(const at::Tensor& all, const std::string& source) {
  if (all.dim() != 2 || all.size(0) != count_)
    throw CheckpointError(source + ": has the random streams of " + std::to_string(all.size(0)) +
                          " logical ranks, and there are " + std::to_string(count_));
  try {
    for (int64_t i = 0; i < own(); ++i)
      streams_[static_cast<size_t>(i)].set_state(all[first() + i].clone());
  } catch (const c10::Error&) {
    throw CheckpointError(source + ": holds what is no state of a CPU generator");
  }
}

}  // namespace lockstep
