#include "lockstep/parallel/ddp/replica.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/comm/coalesced.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/ddp/internal/join_protocol.h"
#include "lockstep/parallel/ddp/join.h"

namespace lockstep::inline v0 {
namespace internal {
namespace {

flat::WrappedParameters wrapped(const NamedTensors& parameters, ModelKind kind) {
  flat::WrappedParameters result("DistributedDataParallel", parameters, kind);
  result.check_trained();
  return result;
}

NamedTensors both(NamedTensors first, const NamedTensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

Replica::Replica(NamedTensors parameters, ModelKind kind, NamedTensors buffers,
                 SyncBatchNormWatch sync_batch_norms, Communicator comm, DdpOptions options)
    : wrapped_(wrapped(parameters, kind)),
      comm_(comm.size() == 1 ? std::move(comm) : comm.duplicate()),
      options_(std::move(options)),
      parameters_(std::move(parameters)),
      buffers_(std::move(buffers)),
      sync_batch_norms_(std::move(sync_batch_norms)),
      reducer_((make_equal(), flat::trained_once(parameters_)), comm_,
               {.bucket_sizes = options_.bucket_sizes,
                .hook = options_.hook,
                .unused = options_.unused,
                .static_graph = options_.static_graph}) {}

void Replica::make_equal() {
  if (!options_.init_sync) return;
  check_same_on_all_ranks(comm_, both(parameters_, buffers_));
  broadcast_tensors(comm_, both(parameters_, buffers_));
}

double Replica::before_forward(bool training, int64_t samples) {
  if (!reducer_.before_forward(training)) return 1;
  const bool communicates = reducer_.communicates();
  const JoinState join_state = call_forward(samples, communicates);
  if (options_.check_every > 0 && reducer_.forwards() % options_.check_every == 0 && !uneven_)
    check_equal_values(comm_, parameters_);
  if (communicates)
    exchange_buffers(join_state.first, join_state.contributing, /*own_counts=*/true);
  if (options_.divide_by == DivideBy::kRanks || join_state.samples == 0)
    return static_cast<double>(comm_.size()) / join_state.contributing;
  return static_cast<double>(samples * comm_.size()) / static_cast<double>(join_state.samples);
}

// Announces this rank's forward and its samples.
JoinState Replica::call_forward(int64_t samples, bool communicates) {
  if (join_protocol_) {
    const JoinState join_state = join_protocol_->call(
        {Step::kForward, {reducer_.forwards(), reducer_.batch(), samples, communicates}},
        Communicator::Site::current());
    note(join_state);
    return join_state;
  }
  JoinState all{.contributing = comm_.size(), .first = 0, .step = {}};
  if (options_.divide_by == DivideBy::kSamples) {
    const at::Tensor sum = at::full({1}, samples, at::kLong);
    comm_.all_reduce(sum);
    all.samples = *sum.const_data_ptr<int64_t>();
  }
  return all;
}

void Replica::exchange_buffers(int source, int contributing, bool own_counts) {
  if (options_.buffers == Buffers::kOwn) return;
  const at::NoGradGuard no_grad;
  if (options_.buffers == Buffers::kBroadcast) {
    for (size_t begin = 0; begin < buffers_.size();) {
      std::vector<at::Tensor> values;  // on one device
      for (; begin < buffers_.size() &&
             buffers_[begin].second.device() ==
                 (values.empty() ? buffers_[begin].second : values[0]).device();
           // Autograd may have saved it.
           ++begin)
        values.push_back(buffers_[begin].second.variable_data());
      broadcast_coalesced(comm_, values, source);
    }
    return;
  }
  for (const auto& [name, buffer] : buffers_) {
    const at::Tensor values = buffer.detach();
    if (!values.is_floating_point()) {
      broadcast_tensors(comm_, {{name, values}}, source);
    } else if (contributing == comm_.size()) {
      comm_.all_reduce(values, ReduceOp::kAvg);
    } else {
      if (!own_counts) values.zero_();
      comm_.all_reduce(values, ReduceOp::kSum);
      values.div_(contributing);
    }
  }
}

void Replica::note(const JoinState& join_state) {
  last_source_ = join_state.first;
  uneven_ |= join_state.contributing < comm_.size();
}

void Replica::begin_join() {
  if (join_protocol_) throw InvalidArgument("join(): the model's last Join has not been finished");
  join_protocol_ = std::make_shared<JoinProtocol>(comm_);
  reducer_.set_join_protocol(join_protocol_);
  sync_batch_norms_.before_exchange([this](int64_t numbers, int64_t group) {
    join_protocol_->start({Step::kStatistics, {numbers, group}});
  });
  uneven_ = false;
}

void Replica::leave_join() {
  sync_batch_norms_.before_exchange(nullptr);
  join_protocol_.reset();
  reducer_.set_join_protocol(nullptr);
}

void Replica::finish_join(const std::function<void()>& after_backward, Communicator::Site site) {
  for (;;) {
    const JoinState join_state = join_protocol_->call({}, site);
    if (join_state.contributing == 0) break;
    if (join_state.step.step == Step::kForward) {
      note(join_state);
      if (join_state.step.detail[3] != 0)
        exchange_buffers(join_state.first, join_state.contributing, /*own_counts=*/false);
    }
    if (join_state.step.step == Step::kStatistics) {
      sync_batch_norms_.stand_in(join_state.step.detail[0], join_state.step.detail[1]);
      continue;
    }
    if (reducer_.shadow(join_state) && after_backward) after_backward();
  }
  const bool uneven = uneven_;
  leave_join();
  uneven_ = false;
  if (!uneven) return;
  broadcast_tensors(comm_, buffers_, last_source_);
  if (!after_backward) broadcast_tensors(comm_, parameters_, last_source_);
}

namespace {

struct Weigh : torch::autograd::Function<Weigh> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& output,
                            double weight) {
    ctx->saved_data["weight"] = weight;
    return output.view_as(output);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].mul(ctx->saved_data["weight"].toDouble()), at::Tensor()};
  }
};

}  // namespace

at::Tensor weigh_gradient(const at::Tensor& output, double weight) {
  if (weight == 1 || !output.defined() || !output.requires_grad()) return output;
  return Weigh::apply(output, weight);
}

void throw_cannot_weigh() {
  throw InvalidArgument(
      "the ranks' losses count differently (unequal batches, or a rank without data), and this "
      "model's output cannot be weighed: return tensors in a form that flat/nested.h finds");
}

}  // namespace internal

Join::Join(std::shared_ptr<internal::Replica> replica) : replica_(std::move(replica)) {
  replica_->begin_join();
}

Join::~Join() {
  if (replica_) replica_->leave_join();
}

void Join::finish(const std::function<void()>& after_backward, std::source_location site) {
  if (!replica_) throw InvalidArgument("Join::finish: finished before");
  const std::shared_ptr<internal::Replica> replica = replica_;
  replica->finish_join(after_backward, site);
  replica_.reset();
}

}  // namespace lockstep::inline v0
