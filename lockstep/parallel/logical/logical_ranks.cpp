#include "lockstep/parallel/logical/logical_ranks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/stopwatch.h"
#include "lockstep/device/generator_state.h"
#include "lockstep/flat/gradient_home.h"
#include "lockstep/hooks/thread_generator.h"

namespace lockstep::inline v0 {
namespace {

constexpr uint64_t kApart = 0x9e3779b97f4a7c15;  // an odd factor keeps the streams' seeds distinct

uint64_t draw(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get<at::CPUGeneratorImpl>()->random64();
}

// During its lifetime a device's generator draws from `seed`; afterwards it continues where it was.
class DeviceSeed {
 public:
  DeviceSeed(at::Device device, uint64_t seed)
      : device_(device), before_(device::generator_state(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  ~DeviceSeed() {
    try {
      device::set_generator_state(device_, before_);
    } catch (const std::exception&) {  // cannot fail: the state was this generator's before
    }
  }
  DeviceSeed(const DeviceSeed&) = delete;
  DeviceSeed& operator=(const DeviceSeed&) = delete;

 private:
  at::Device device_;
  at::Tensor before_;
};

std::vector<at::Tensor> copies(const NamedTensors& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back(tensor.clone());
  return result;
}

void copy_back(const std::vector<at::Tensor>& values, const NamedTensors& tensors) {
  for (size_t i = 0; i < values.size(); ++i) tensors[i].second.copy_(values[i]);
}

}  // namespace

LogicalRanks::LogicalRanks(Communicator comm, std::shared_ptr<torch::nn::Module> model, int count)
    : comm_(std::move(comm)),
      model_(std::move(model)),
      count_(count),
      wrapped_("LogicalRanks", parameters_of(*model_)) {
  wrapped_.check_trained();
  buffers_ = to_named_tensors(model_->named_buffers());
  NamedTensors everything = parameters_of(*model_);
  everything.insert(everything.end(), buffers_.begin(), buffers_.end());
  // The ranks' counts are compared like a shape, so that all ranks or none are refused afterwards.
  NamedTensors compared = everything;
  compared.emplace_back("logical ranks", at::empty({1}).expand({std::max(count, 0)}));
  check_same_on_all_ranks(comm_, compared);
  if (count < 1 || !std::has_single_bit(static_cast<unsigned>(count)))
    throw InvalidArgument("LogicalRanks: " + std::to_string(count) +
                          " logical ranks are no power of two, which their tree needs");
  if (count % comm_.size() != 0)
    throw InvalidArgument("LogicalRanks: " + std::to_string(count) +
                          " logical ranks cannot be shared equally by " +
                          std::to_string(comm_.size()) + " ranks; start a power of two up to " +
                          std::to_string(count));
  device_ = everything.front().second.device();
  for (const auto& [name, tensor] : everything) {
    if (tensor.device() != device_)
      throw InvalidArgument("LogicalRanks: '" + name + "' is on " + tensor.device().str() +
                            " and '" + everything.front().first + "' on " + device_.str() +
                            "; move the model to one device");
  }
  broadcast_tensors(comm_, everything);

  const at::Tensor seed = at::zeros({1}, at::kLong);
  if (comm_.rank() == 0)
    seed.fill_(static_cast<int64_t>(draw(at::detail::getDefaultCPUGenerator()) >> 1));
  comm_.broadcast(seed, 0);
  const auto base = static_cast<uint64_t>(seed.item<int64_t>());
  streams_.resize(static_cast<size_t>(count / comm_.size()));
  for (size_t i = 0; i < streams_.size(); ++i) {
    const auto rank = static_cast<uint64_t>(comm_.rank()) * streams_.size() + i;
    // The CPU generator uses 32 bits of its seed.
    streams_[i] = at::detail::createCPUGenerator((base + rank * kApart) >> 32);
  }

  std::map<at::ScalarType, Flat> flats;
  std::unordered_set<const c10::TensorImpl*> seen;  // a tied parameter has several names
  for (const auto& [name, parameter] : parameters_of(*model_)) {
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
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
  wrapped_.check(*model_);
  if (done_ == 0 && !begun_.defined()) {
    const at::NoGradGuard no_grad;
    begun_ = random_states();
    found_ = copies(buffers_);
  }
  const at::Generator& stream = streams_[static_cast<size_t>(done_)];
  const hooks::ThreadGenerator here([&stream]() -> const at::Generator& { return stream; });
  if (device_.is_cpu()) return compute();
  const DeviceSeed seed(device_, draw(stream));
  return compute();
}

at::Tensor LogicalRanks::place_in(const at::Tensor& memory, const Flat& flat, size_t i) {
  const at::Tensor& parameter = flat.parameters[i];
  return parameter.is_non_overlapping_and_dense()
             ? flat::window(memory, flat.offsets[i], parameter.sizes(), parameter.strides())
             : flat::window(memory, flat.offsets[i], parameter.sizes());
}

at::Tensor LogicalRanks::leaf_of(Flat& flat) {
  at::Tensor leaf = flat.sum.spare();
  if (!leaf.defined()) leaf = at::zeros({flat.numel}, flat.parameters[0].options());
  for (size_t i = 0; i < flat.parameters.size(); ++i) {
    const at::Tensor place = place_in(leaf, flat, i);
    at::Tensor& gradient = flat.parameters[i].mutable_grad();
    if (gradient.defined())
      flat::move_into(place, gradient);
    else
      place.zero_();
    gradient = at::Tensor();
  }
  return leaf;
}

void LogicalRanks::drop_gradients() {
  for (Flat& flat : flats_) {
    for (const at::Tensor& parameter : flat.parameters) parameter.mutable_grad() = at::Tensor();
    if (flat.mean.defined()) flat.sum.give(std::exchange(flat.mean, at::Tensor()));
  }
}

void LogicalRanks::backward(const at::Tensor& loss) {
  if (complete())
    throw InvalidArgument("LogicalRanks: this rank has " + std::to_string(own()) +
                          " batches a step, and this is one more");
  if (done_ == 0) drop_gradients();  // of the previous step
  loss.backward();
  const at::NoGradGuard no_grad;
  for (Flat& flat : flats_) flat.sum.add(leaf_of(flat));
  // Each starts with the step's initial buffers. They are restored after backward, which may use
  // them.
  if (first() + done_ == 0) left_ = copies(buffers_);
  copy_back(found_, buffers_);
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
    for (size_t i = 0; i < flat.parameters.size(); ++i)
      flat.parameters[i].mutable_grad() = place_in(flat.mean, flat, i);
  }
  copy_back(left_, buffers_);  // filled only on rank 0
  if (!buffers_.empty()) broadcast_tensors(comm_, buffers_);
  end_step();
}

void LogicalRanks::end_step() {
  found_.clear();
  left_.clear();
  begun_ = at::Tensor();
  done_ = 0;
}

void LogicalRanks::leave_out() {
  const at::NoGradGuard no_grad;
  for (Flat& flat : flats_) flat.sum.clear();
  drop_gradients();
  copy_back(found_, buffers_);
  for (int64_t i = 0; begun_.defined() && i < own(); ++i)
    streams_[static_cast<size_t>(i)].set_state(begun_[i].clone());
  end_step();
}

at::Tensor LogicalRanks::random_states() const {
  std::vector<at::Tensor> rows;
  for (const at::Generator& stream : streams_) rows.push_back(stream.get_state());
  return at::stack(rows);
}

void LogicalRanks::set_random_states(const at::Tensor& all, const std::string& source) {
  if (all.dim() != 2 || all.size(0) < 1)
    throw CheckpointError(source + ": holds no states of generators");
  std::vector<at::Generator> fresh;
  try {
    if (all.size(0) == count_) {
      for (int64_t i = 0; i < own(); ++i) {
        fresh.push_back(at::detail::createCPUGenerator());
        fresh.back().set_state(all[first() + i].clone());
      }
    } else {
      at::Generator from = at::detail::createCPUGenerator();
      from.set_state(all[0].clone());
      for (int64_t rank = 0; rank < first() + own(); ++rank) {
        const uint64_t drawn = from.get<at::CPUGeneratorImpl>()->random64();
        if (rank >= first()) fresh.push_back(at::detail::createCPUGenerator(drawn));
      }
    }
  } catch (const c10::Error&) {
    throw CheckpointError(source + ": holds what is no state of a CPU generator");
  }
  streams_ = std::move(fresh);
}

}  // namespace lockstep::inline v0
