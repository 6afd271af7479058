#include "lockstep/parallel/horovod/distributed_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/backward_watch.h"
#include "lockstep/flat/wrapped_parameters.h"
#include "lockstep/parallel/horovod/fused_buffers.h"
#include "lockstep/parallel/horovod/readiness.h"

namespace lockstep::inline v0 {
namespace {

using horovod::has_bit;

void check_options(const DistributedGradientsOptions& options) {
  if (options.op == GradientOp::kAdasum) {
    throw InvalidArgument(
        "Adasum combines the steps of an optimizer, not gradients; use DistributedOptimizer");
  }
  if (options.backward_passes_per_step < 1)
    throw InvalidArgument("backward_passes_per_step must be 1 or more");
  if (!(options.gradient_predivide_factor > 0) || !std::isfinite(options.gradient_predivide_factor))
    throw InvalidArgument("gradient_predivide_factor must be above 0 and finite");
  if (options.gradient_predivide_factor != 1 && options.op != GradientOp::kAverage)
    throw InvalidArgument("gradient_predivide_factor is for GradientOp::kAverage only");
  if (options.fusion_threshold < 1)
    throw InvalidArgument("fusion_threshold must be 1 or more bytes");
  if (options.rounds < 1) throw InvalidArgument("rounds must be 1 or more");
}

NamedTensors that_take_gradients(const NamedTensors& parameters) {
  NamedTensors result;
  std::set<const void*> seen;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    if (!tensor.is_leaf())
      throw InvalidArgument("parameter '" + name + "' takes no gradient of its own");
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second)
      throw InvalidArgument("parameter '" + name + "' is given twice");
    result.emplace_back(name, tensor);
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& entry : parameters) tensors.push_back(entry.second);
  return tensors;
}

horovod::Readiness make_readiness(const NamedTensors& parameters,
                                  const DistributedGradientsOptions& options) {
  std::vector<int64_t> bytes;
  for (const auto& entry : parameters) bytes.push_back(static_cast<int64_t>(entry.second.nbytes()));
  return {std::move(bytes), options.backward_passes_per_step, options.rounds};
}

at::ScalarType wire_of(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return at::ScalarType::Undefined;
    case Compression::kFloat16:
      return at::kHalf;
    case Compression::kBFloat16:
      return at::kBFloat16;
  }
  throw InvalidArgument("unknown compression");
}

horovod::Reduction reduction_of(const DistributedGradientsOptions& options, int ranks) {
  if (options.op == GradientOp::kSum) return {ReduceOp::kSum, 1, 1};
  const double factor = options.gradient_predivide_factor;
  if (factor == 1) return {ReduceOp::kAvg, 1, 1};
  return {ReduceOp::kSum, 1 / factor, factor / ranks};
}

}  // namespace

class DistributedGradients::State final : public flat::BackwardWatch {
 public:
  State(flat::WrappedParameters wrapped, NamedTensors parameters, const Communicator& comm,
        const DistributedGradientsOptions& options)
      : wrapped_(std::move(wrapped)),
        options_(options),
        parameters_(std::move(parameters)),
        readiness_(make_readiness(parameters_, options)),
        rank_(comm.rank()),
        size_(comm.size()),
        reduced_(parameters_.size(), false) {
    if (size_ == 1) return;
    // Hooks run while the caller may be anywhere between its own collectives.
    Communicator own = comm;
    own = own.duplicate();
    comm_.emplace(own);
    buffers_.emplace(own, tensors_of(parameters_), wire_of(options.compression),
                     options.fusion_threshold, reduction_of(options, size_));
  }

  void install_hooks() { watch(tensors_of(parameters_)); }
  void synchronize();
  void stepped() { synchronized_ = false; }
  bool pending() const { return readiness_.any(); }
  int64_t buffer_bytes() const { return buffers_ ? buffers_->bytes() : 0; }
  const std::vector<MissingGradient>& missing() const { return missing_; }

 private:
  struct Round {
    at::Tensor bits;
    Work work;
  };

  void gradient_arrived(size_t index, const at::Tensor& passed) override;
  void make_dense(size_t index);
  void begin_round();
  void end_round();
  at::Tensor exchange_used();
  void reduce(const std::vector<size_t>& parameters);
  void judge(const at::Tensor& used);
  void reset();
  std::string note() const;

  flat::WrappedParameters wrapped_;  // including those that take no gradient
  DistributedGradientsOptions options_;
  NamedTensors parameters_;
  horovod::Readiness readiness_;
  int rank_;
  int size_;
  std::optional<Communicator> comm_;  // empty if this rank is alone
  std::optional<horovod::FusedBuffers> buffers_;
  int64_t step_ = 1;
  size_t begun_ = 0;            // rounds of this step
  std::optional<Round> round_;  // pending
  std::vector<bool> reduced_;   // in this step
  bool synchronized_ = false;   // synchronized, and no gradient has arrived since
  std::vector<MissingGradient> missing_;
};

void DistributedGradients::State::gradient_arrived(size_t index, const at::Tensor& /*passed*/) {
  synchronized_ = false;
  make_dense(index);
  if (!readiness_.arrived(index)) {
    throw InvalidArgument(
        "the gradient of parameter '" + parameters_[index].first + "' arrived more than " +
        std::to_string(options_.backward_passes_per_step) +
        " times before step() or synchronize(); set backward_passes_per_step to the number of "
        "backwards, and use the parameter in one checkpointed part only");
  }
  if (!comm_) return;
  // Goes as far as the other ranks have, without waiting.
  while (true) {
    if (round_) {
      if (!round_->work.test()) break;
      end_round();
    }
    if (begun_ == readiness_.rounds_due()) break;
    begin_round();
  }
  comm_->progress();
}

void DistributedGradients::State::make_dense(size_t index) {
  at::Tensor& gradient = parameters_[index].second.mutable_grad();
  if (!gradient.is_sparse()) return;
  if (!options_.sparse_as_dense) {
    throw InvalidArgument("parameter '" + parameters_[index].first +
                          "' has a sparse gradient; set sparse_as_dense, or make the embedding "
                          "dense");
  }
  const at::NoGradGuard no_grad;
  gradient = gradient.to_dense();
}

// Identifies the call: ranks that are out of step get Mismatch, which shows this text.
std::string DistributedGradients::State::note() const {
  return "round " + std::to_string(begun_ + 1) + "/" + std::to_string(readiness_.rounds()) +
         " of step " + std::to_string(step_) + ", " + std::to_string(readiness_.backwards()) +
         " backwards";
}

void DistributedGradients::State::begin_round() {
  const horovod::Bits& mine = readiness_.said(begun_);
  Round round;
  round.bits = at::empty({static_cast<int64_t>(mine.size())}, at::kByte);
  std::copy(mine.begin(), mine.end(), round.bits.mutable_data_ptr<uint8_t>());
  const std::string text = note();
  round.work = comm_->iall_reduce(round.bits, ReduceOp::kBitAnd, call_note(text));
  round_ = std::move(round);
  ++begun_;
}

void DistributedGradients::State::end_round() {
  round_->work.wait();
  const auto* ready = round_->bits.const_data_ptr<uint8_t>();
  std::vector<size_t> now;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (has_bit(ready, i) && !reduced_[i]) now.push_back(i);
  }
  round_.reset();
  reduce(now);
}

void DistributedGradients::State::reduce(const std::vector<size_t>& parameters) {
  if (parameters.empty()) return;
  for (const size_t i : parameters) reduced_[i] = true;
  buffers_->start(parameters, "gradients after round " + std::to_string(begun_) + " of step " +
                                  std::to_string(step_));
}

// The last round: row r says which parameters rank r has used.
at::Tensor DistributedGradients::State::exchange_used() {
  const horovod::Bits mine = readiness_.used();
  const auto width = static_cast<int64_t>(mine.size());
  const at::Tensor used = at::zeros({size_, width}, at::kByte);
  std::copy(mine.begin(), mine.end(), used.mutable_data_ptr<uint8_t>() + rank_ * width);
  if (!comm_) return used;
  const std::string text = note();
  comm_->iall_reduce(used, ReduceOp::kBitOr, call_note(text)).wait();
  ++begun_;
  return used;
}

void DistributedGradients::State::synchronize() {
  wrapped_.check_kinds();
  if (synchronized_) return;
  try {
    if (comm_) {
      readiness_.close();
      while (round_ || begun_ < readiness_.rounds_due()) {
        if (round_)
          end_round();
        else
          begin_round();
      }
    }
    const at::Tensor used = exchange_used();
    if (comm_) {
      const auto* bits = used.const_data_ptr<uint8_t>();
      const auto width = static_cast<size_t>(used.size(1));
      std::vector<size_t> rest;
      for (size_t i = 0; i < parameters_.size(); ++i) {
        bool anywhere = false;
        for (int r = 0; r < size_; ++r)
          anywhere = anywhere || has_bit(bits + static_cast<size_t>(r) * width, i);
        if (anywhere && !reduced_[i]) rest.push_back(i);
      }
      reduce(rest);
      buffers_->finish();
    }
    reset();
    synchronized_ = true;
    judge(used);
  } catch (const InvalidArgument&) {
    throw;
  } catch (...) {
    reset();
    throw;
  }
}

void DistributedGradients::State::judge(const at::Tensor& used) {
  const auto* bits = used.const_data_ptr<uint8_t>();
  const auto width = static_cast<size_t>(used.size(1));
  missing_.clear();
  std::string nowhere;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& [name, tensor] = parameters_[i];
    MissingGradient missing{name, {}};
    for (int r = 0; r < size_; ++r) {
      if (!has_bit(bits + static_cast<size_t>(r) * width, i)) missing.ranks.push_back(r);
    }
    if (missing.ranks.empty()) continue;
    if (missing.ranks.size() < static_cast<size_t>(size_)) {
      missing_.push_back(std::move(missing));
      continue;
    }
    if (options_.unused == Unused::kZero && !tensor.grad().defined())
      tensor.mutable_grad() = at::zeros_like(tensor);
    if (options_.unused == Unused::kThrow) nowhere += (nowhere.empty() ? "'" : ", '") + name + "'";
  }
  if (!nowhere.empty()) {
    throw InvalidArgument("no rank's backward reached " + nowhere +
                          "; leave it out of the loss on purpose with Unused::kLeave, or mend the "
                          "model");
  }
}

void DistributedGradients::State::reset() {
  readiness_.reset();
  round_.reset();
  begun_ = 0;
  reduced_.assign(parameters_.size(), false);
  ++step_;
}

DistributedGradients::DistributedGradients(const NamedTensors& parameters, Communicator comm,
                                           DistributedGradientsOptions options) {
  check_options(options);
  flat::WrappedParameters wrapped("DistributedGradients", parameters);
  wrapped.check_trained();
  NamedTensors taken = that_take_gradients(parameters);
  check_same_on_all_ranks(comm, taken);
  state_ = std::make_shared<State>(std::move(wrapped), std::move(taken), comm, options);
  state_->install_hooks();
}

DistributedGradients::~DistributedGradients() = default;

void DistributedGradients::synchronize() {
  state_->synchronize();
}

bool DistributedGradients::pending() const {
  return state_->pending();
}

int64_t DistributedGradients::buffer_bytes() const {
  return state_->buffer_bytes();
}

void DistributedGradients::stepped() {
  state_->stepped();
}

const std::vector<MissingGradient>& DistributedGradients::missing() const {
  return state_->missing();
}

}  // namespace lockstep::inline v0
