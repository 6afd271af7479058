#include "lockstep/parallel/expert/expert_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "lockstep/comm/agree.h"
#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"

namespace lockstep::inline v0 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A layer's exchange, which forward and backward share.
struct Exchange final : torch::CustomClassHolder {
  Exchange(Communicator comm, int64_t layer) : comm(std::move(comm)), layer(layer) {}

  // To the experts, or back from them.
  at::Tensor send(const at::Tensor& rows, bool to_experts) {
    const auto& sends = to_experts ? routes.sends : routes.receives;
    const auto& receives = to_experts ? routes.receives : routes.sends;
    const at::Tensor mine = to_experts ? rows.contiguous() : rows.index_select(0, received);
    const int64_t count = std::accumulate(receives.begin(), receives.end(), int64_t{0});
    const at::Tensor theirs = at::empty({count, rows.size(1)}, mine.options());
    comm.iall_to_allv(theirs, mine, sends, receives).wait();
    return to_experts ? theirs.index_select(0, sorted) : theirs;
  }

  // Before a backward's exchange: forwards compare the layer with the counts.
  void meet(const char* way) {
    agree(comm, "expert: layer " + std::to_string(layer) + ", backward " + way);
  }

  Communicator comm;
  int64_t layer;
  ExpertRoutes routes;
  at::Tensor sorted, received;
};
using ExchangePtr = c10::intrusive_ptr<Exchange>;

// A gradient with respect to an expert's parameters is a mean over the ranks: what comes to the experts is divided by
// their number, and what leaves to the tokens multiplied.
class ExchangeNode final : public torch::autograd::Function<ExchangeNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const ExchangePtr& exchange, bool to_experts) {
    context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    context->saved_data["to_experts"] = to_experts;
    return exchange->send(rows, to_experts);
  }

  // Undefined gradients come as zeros: this rank takes part whatever it has to say.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (at::GradMode::is_enabled())
      throw InvalidArgument(
          "expert_parallel_lm: a gradient of the gradient is not computed; call backward without "
          "create_graph");
    const auto exchange =
        c10::static_intrusive_pointer_cast<Exchange>(context->saved_data["exchange"].toCapsule());
    const bool to_experts = context->saved_data["to_experts"].toBool();
    const auto ranks = static_cast<double>(exchange->comm.size());
    // One byte a layer is enough: what comes back follows what went.
    if (!to_experts) exchange->meet("of what experts gave");
    at::Tensor back = exchange->send(to_experts ? gradients[0] : gradients[0] / ranks, !to_experts);
    if (to_experts) back.mul_(ranks);
    return {back, at::Tensor(), at::Tensor()};
  }
};

at::Tensor through(const at::Tensor& rows, const ExchangePtr& exchange, bool to_experts) {
  if (at::GradMode::is_enabled() && rows.requires_grad())
    return ExchangeNode::apply(rows, exchange, to_experts);
  const at::NoGradGuard no_grad;
  return exchange->send(rows, to_experts);
}

LmExpertRows exchanged(const Communicator& comm, const at::Tensor& rows,
                       const std::vector<int64_t>& counts, int64_t layer) {
  auto exchange = c10::make_intrusive<Exchange>(comm, layer);
  const auto ranks = static_cast<int64_t>(comm.size());
  const auto experts = static_cast<int64_t>(counts.size());
  const at::Tensor all = at::zeros({ranks, experts}, at::kLong);
  all.select(0, comm.rank()).copy_(at::tensor(counts, at::kLong));
  exchange->comm
      .iall_reduce(all, ReduceOp::kSum,
                   call_note("expert: counts of layer " + std::to_string(layer)))
      .wait();
  const auto* const numbers = all.const_data_ptr<int64_t>();
  exchange->routes = expert_routes({numbers, numbers + all.numel()}, experts, comm.rank(), ranks);
  exchange->sorted = device::copy_to(at::tensor(exchange->routes.sorted, at::kLong), rows.device());
  exchange->received =
      device::copy_to(at::tensor(exchange->routes.received, at::kLong), rows.device());
  LmExpertRows here;
  here.rows = through(rows, exchange, /*to_experts=*/true);
  here.counts = exchange->routes.counts;
  here.back = [exchange](const at::Tensor& made) {
    return through(made, exchange, /*to_experts=*/false);
  };
  return here;
}

class RanksExperts final : public ExpertExchange {
 public:
  RanksExperts(Communicator comm, Communicator tokens)
      : comm_(std::move(comm)), tokens_(std::move(tokens)) {}

  LmExpertRows exchange(const at::Tensor& rows, const std::vector<int64_t>& counts,
                        int64_t layer) const override {
    return exchanged(comm_, rows, counts, layer);
  }
  int64_t token_ranks() const override { return tokens_.size(); }
  void combine(const at::Tensor& sums) const override {
    Communicator(tokens_)
        .iall_reduce(sums, ReduceOp::kSum, call_note("expert: routers' losses"))
        .wait();
  }

 private:
  Communicator comm_, tokens_;
};

}  // namespace

ExpertRoutes expert_routes(const std::vector<int64_t>& all, int64_t experts, int64_t rank,
                           int64_t ranks) {
  const int64_t each = experts / ranks;
  const auto rows = [&](int64_t of_rank, int64_t expert) {
    return all[static_cast<size_t>(of_rank * experts + expert)];
  };
  ExpertRoutes routes;
  // Where the rows of each rank for each of this one's experts begin among those received.
  std::vector<int64_t> begins(static_cast<size_t>(ranks * each));
  int64_t received = 0;
  for (int64_t other = 0; other < ranks; ++other) {
    int64_t sent = 0;
    const int64_t before = received;
    for (int64_t e = 0; e < each; ++e) {
      sent += rows(rank, other * each + e);
      begins[static_cast<size_t>(other * each + e)] = received;
      received += rows(other, rank * each + e);
    }
    routes.sends.push_back(sent);
    routes.receives.push_back(received - before);
  }
  routes.received.resize(static_cast<size_t>(received));
  for (int64_t e = 0; e < each; ++e) {
    const auto first = static_cast<int64_t>(routes.sorted.size());
    for (int64_t other = 0; other < ranks; ++other) {
      const int64_t begin = begins[static_cast<size_t>(other * each + e)];
      for (int64_t i = begin; i < begin + rows(other, rank * each + e); ++i) {
        routes.received[static_cast<size_t>(i)] = static_cast<int64_t>(routes.sorted.size());
        routes.sorted.push_back(i);
      }
    }
    routes.counts.push_back(static_cast<int64_t>(routes.sorted.size()) - first);
  }
  return routes;
}

LmExperts experts_over(const Communicator& comm, const Communicator& tokens) {
  return {.part = comm.rank(),
          .parts = comm.size(),
          .ranks = std::make_shared<RanksExperts>(comm, tokens)};
}

}  // namespace lockstep::inline v0
