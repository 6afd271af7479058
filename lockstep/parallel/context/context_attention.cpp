#include "lockstep/parallel/context/context_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/context/context_layout.h"
#include "lockstep/parallel/context/internal/blocks.h"

namespace lockstep::inline v0 {
namespace {

using internal::accumulated_type;
using internal::BlockPlace;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Site = Communicator::Site;

// Messages of the ring, apart from whatever else goes from rank to rank.
constexpr int kKeysTag = 30201, kGradientsTag = 30202;

// One call, for its backward as well.
struct AttentionCall : torch::CustomClassHolder {
  AttentionCall(const Communicator& comm, const std::vector<int64_t>& lengths, Site site)
      : comm(comm), lengths(lengths), site(site) {}

  int64_t rank() const { return comm.rank(); }
  int64_t size() const { return comm.size(); }
  int64_t rows_of(int64_t rank) const { return context_count(lengths, rank, size()); }

  Communicator comm;
  std::vector<int64_t> lengths;
  Site site;
};
using CallPtr = c10::intrusive_ptr<AttentionCall>;

c10::impl::ExcludeDispatchKeyGuard types_as_they_are() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::autocast_dispatch_keyset);
}

void refuse_gradient_of_gradient(const char* name) {
  if (at::GradMode::is_enabled())
    throw InvalidArgument(std::string(name) +
                          ": a gradient of the gradient is not computed; call backward without "
                          "create_graph");
}

// ---- the ring ----

// Keys and values [2, rows, heads, width] that go from rank to rank. Turn i has those of rank() - i.
class Ring {
 public:
  Ring(AttentionCall& call, at::Tensor own) : call_(call), block_(std::move(own)) {}

  int64_t turn() const { return turn_; }
  int64_t whose() const { return rank_at(turn_); }
  const at::Tensor& block() const { return block_; }
  BlockPlace place() const { return {call_.lengths, call_.rank(), whose(), call_.size()}; }
  bool last() const { return turn_ + 1 == call_.size(); }

  // The block goes on while it is used here.
  void send_on() {
    if (last()) return;
    next_ = at::empty({2, call_.rows_of(rank_at(turn_ + 1)), block_.size(2), block_.size(3)},
                      block_.options());
    received_ = call_.comm.irecv(next_, before(), kKeysTag, call_.site);
    sent_ = call_.comm.isend(block_, after(), kKeysTag, call_.site);
  }
  void go_on() {
    if (last()) return;
    received_.wait();
    sent_.wait();
    block_ = std::move(next_);
    ++turn_;
  }

  // Neighbours.
  int after() const { return static_cast<int>((call_.rank() + 1) % call_.size()); }
  int before() const { return static_cast<int>((call_.rank() + call_.size() - 1) % call_.size()); }

  internal::Between progress() const {
    if (call_.size() == 1) return {};
    return [&comm = call_.comm] { comm.progress(); };
  }

 private:
  int64_t rank_at(int64_t turn) const {
    return (call_.rank() - turn + call_.size()) % call_.size();
  }

  AttentionCall& call_;
  at::Tensor block_, next_;
  int64_t turn_ = 0;
  Work received_, sent_;
};

class RingNode final : public torch::autograd::Function<RingNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values, const CallPtr& call) {
    const auto guard = types_as_they_are();
    const at::ScalarType wide = accumulated_type(queries.scalar_type());
    const at::Tensor own = at::stack({keys, values});
    const internal::Seen seen{
        at::empty(queries.sizes(), queries.options().dtype(wide)),
        at::empty({queries.size(0), queries.size(1)}, queries.options().dtype(wide))};
    Ring ring(*call, own);
    for (int64_t turn = 0; turn < call->size(); ++turn) {
      ring.send_on();
      internal::attend_block(ring.place(), queries, ring.block()[0], ring.block()[1], seen,
                             ring.progress());
      ring.go_on();
    }
    const at::Tensor mixed = seen.mixed.to(queries.scalar_type());
    context->save_for_backward({queries, own, mixed, seen.sums});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return mixed;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_gradient_of_gradient("ring_attention");
    const auto guard = types_as_they_are();
    const auto kept = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    auto& call = static_cast<AttentionCall&>(*capsule);
    const internal::Attended of{kept[0], kept[2], kept[3], gradients[0].contiguous()};
    const auto wide = kept[0].options().dtype(accumulated_type(kept[0].scalar_type()));
    const at::Tensor dqueries = at::zeros(kept[0].sizes(), wide);
    Ring ring(call, kept[1]);
    // What is sent on of a block's gradient, which those before have added up.
    at::Tensor dblock;
    Work sent;
    for (int64_t turn = 0; turn < call.size(); ++turn) {
      ring.send_on();
      const at::Tensor mine = at::zeros(ring.block().sizes(), wide);
      at::Tensor others;
      Work received;
      if (turn > 0) {
        others = at::empty_like(mine);
        received = call.comm.irecv(others, ring.before(), kGradientsTag, call.site);
      }
      internal::block_gradients(ring.place(), of, ring.block()[0], ring.block()[1], dqueries,
                                mine[0], mine[1], ring.progress());
      if (turn > 0) {
        received.wait();
        mine.add_(others);
        sent.wait();
      }
      dblock = mine;
      if (call.size() > 1) sent = call.comm.isend(dblock, ring.after(), kGradientsTag, call.site);
      ring.go_on();
    }
    if (call.size() > 1) {
      const at::Tensor home = at::empty(kept[1].sizes(), wide);
      call.comm.irecv(home, ring.before(), kGradientsTag, call.site).wait();
      sent.wait();
      dblock = home;
    }
    const at::ScalarType type = kept[0].scalar_type();
    return {dqueries.to(type), dblock[0].to(type), dblock[1].to(type), at::Tensor()};
  }
};

// ---- by heads ----

// Which heads of keys each rank needs.
class HeadsOfRanks {
 public:
  HeadsOfRanks(int64_t heads, int64_t key_heads, int64_t ranks)
      : heads_(heads), key_heads_(key_heads), ranks_(ranks) {}

  int64_t queries() const { return heads_ / ranks_; }  // of one rank
  // Its queries' heads are then queries() / keys() for each.
  int64_t keys() const {
    if (key_heads_ % ranks_ == 0) return key_heads_ / ranks_;
    return ranks_ % key_heads_ == 0 ? 1 : queries();
  }
  bool repeats() const { return key_heads_ % ranks_ != 0; }
  // Of all ranks, end to end: int64 [ranks * keys()].
  at::Tensor order(at::Device device) const {
    const int64_t group = heads_ / key_heads_, each = queries() / keys();
    return at::arange(0, heads_, each, at::TensorOptions(at::kLong).device(device))
        .floor_divide_(group);
  }

 private:
  int64_t heads_, key_heads_, ranks_;
};

// The exchange of rows for heads, and back.
class Exchange {
 public:
  Exchange(AttentionCall& call, at::Device device) : call_(call) {
    for (int64_t rank = 0; rank < call.size(); ++rank) counts_.push_back(call.rows_of(rank));
    own_.assign(counts_.size(), counts_[static_cast<size_t>(call.rank())]);
    std::vector<int64_t> rows;
    for (int64_t rank = 0; rank < call.size(); ++rank) {
      const auto of_rank = context_rows(call.lengths, rank, call.size());
      rows.insert(rows.end(), of_rank.begin(), of_rank.end());
    }
    by_rank_ = device::copy_to(at::tensor(rows, at::kLong), device);
    in_order_ = at::empty_like(by_rank_);
    in_order_.index_copy_(0, by_rank_, at::arange(by_rank_.size(0), by_rank_.options()));
  }

  // Own rows [ranks, rows, columns], by whose they will be -> all rows in order, [all rows, columns].
  at::Tensor to_heads(const at::Tensor& own) {
    const at::Tensor sent = own.flatten(0, 1);
    const at::Tensor all = at::empty({by_rank_.size(0), own.size(2)}, own.options());
    call_.comm.iall_to_allv(all, sent, own_, counts_, call_.site).wait();
    return all.index_select(0, in_order_);
  }
  // And back.
  at::Tensor to_rows(const at::Tensor& all) {
    const at::Tensor sent = all.index_select(0, by_rank_);
    const auto ranks = static_cast<int64_t>(counts_.size());
    const at::Tensor own = at::empty({ranks * own_[0], all.size(1)}, all.options());
    call_.comm.iall_to_allv(own, sent, counts_, own_, call_.site).wait();
    return own.view({ranks, own_[0], all.size(1)});
  }

 private:
  AttentionCall& call_;
  std::vector<int64_t> counts_, own_;
  at::Tensor by_rank_, in_order_;
};

// [rows, ranks * heads of one, width] -> [ranks, rows, heads of one * width], and back.
at::Tensor by_ranks(const at::Tensor& rows, int64_t ranks) {
  return rows.unflatten(1, {ranks, rows.size(1) / ranks}).transpose(0, 1).flatten(2, 3);
}
at::Tensor from_ranks(const at::Tensor& parts, int64_t width) {
  return parts.unflatten(2, {parts.size(2) / width, width}).transpose(0, 1).flatten(1, 2);
}

class HeadsNode final : public torch::autograd::Function<HeadsNode> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& queries,
                            const at::Tensor& keys, const at::Tensor& values, const CallPtr& call) {
    const auto guard = types_as_they_are();
    const int64_t width = queries.size(2);
    const HeadsOfRanks heads(queries.size(1), keys.size(1), call->size());
    const auto for_ranks = [&](const at::Tensor& x) {
      return by_ranks(heads.repeats() ? x.index_select(1, heads.order(x.device())) : x,
                      call->size());
    };
    Exchange exchange(*call, queries.device());
    const at::Tensor all = exchange.to_heads(
        at::cat({by_ranks(queries, call->size()), for_ranks(keys), for_ranks(values)}, 2));
    const Columns of(all, heads, width);
    const auto wide = queries.options().dtype(accumulated_type(queries.scalar_type()));
    const internal::Seen seen{at::empty({all.size(0), heads.queries(), width}, wide),
                              at::empty({all.size(0), heads.queries()}, wide)};
    internal::attend_block(whole(*call), of.queries, of.keys, of.values, seen, {});
    const at::Tensor mixed = seen.mixed.to(queries.scalar_type());
    context->save_for_backward({all, mixed, seen.sums});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->saved_data["key_heads"] = keys.size(1);
    return from_ranks(exchange.to_rows(mixed.flatten(1, 2)), width);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_gradient_of_gradient("heads_attention");
    const auto guard = types_as_they_are();
    const auto kept = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    auto& call = static_cast<AttentionCall&>(*capsule);
    const int64_t width = kept[1].size(2), key_heads = context->saved_data["key_heads"].toInt();
    const HeadsOfRanks heads(kept[1].size(1) * call.size(), key_heads, call.size());
    Exchange exchange(call, kept[0].device());
    const at::Tensor dmixed = exchange.to_heads(by_ranks(gradients[0], call.size()))
                                  .view({kept[1].size(0), heads.queries(), width});
    const at::Tensor dall = at::zeros(
        kept[0].sizes(), kept[0].options().dtype(accumulated_type(kept[0].scalar_type())));
    const Columns of(kept[0], heads, width), to(dall, heads, width);
    internal::block_gradients(whole(call), {of.queries, kept[1], kept[2], dmixed}, of.keys,
                              of.values, to.queries, to.keys, to.values, {});
    const at::Tensor own = exchange.to_rows(dall.to(kept[0].scalar_type()));
    const int64_t wide = heads.queries() * width, narrow = heads.keys() * width;
    const auto of_keys = [&](int64_t first) {
      const at::Tensor copies = from_ranks(own.narrow(2, first, narrow), width);
      if (!heads.repeats()) return copies;
      const at::Tensor sums =
          at::zeros({copies.size(0), key_heads, width},
                    copies.options().dtype(accumulated_type(copies.scalar_type())));
      sums.index_add_(1, heads.order(sums.device()), copies.to(sums.scalar_type()));
      return sums.to(copies.scalar_type());
    };
    return {from_ranks(own.narrow(2, 0, wide), width), of_keys(wide), of_keys(wide + narrow),
            at::Tensor()};
  }

 private:
  // What of all rows' columns is what, [rows, heads of one rank, width].
  struct Columns {
    Columns(const at::Tensor& all, const HeadsOfRanks& heads, int64_t width) {
      const auto take = [&](int64_t first, int64_t count) {
        return all.narrow(1, first * width, count * width).unflatten(1, {count, width});
      };
      queries = take(0, heads.queries());
      keys = take(heads.queries(), heads.keys());
      values = take(heads.queries() + heads.keys(), heads.keys());
    }
    at::Tensor queries, keys, values;
  };
  // This rank's heads see whole sequences.
  static BlockPlace whole(const AttentionCall& call) { return {call.lengths, 0, 0, 1}; }
};

// ---- both ----

CallPtr checked_call(const char* name, ContextWay way, const Communicator& comm,
                     const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     const std::vector<int64_t>& lengths, Site site) {
  for (const at::Tensor* of : {&queries, &keys, &values}) {
    if (of->defined() && of->dim() == 3 && of->device() == queries.device() &&
        of->scalar_type() == queries.scalar_type() &&
        of->size(0) == context_count(lengths, comm.rank(), comm.size()) &&
        of->size(2) == queries.size(2) && of->sizes() == (of == &queries ? queries : keys).sizes())
      continue;
    throw InvalidArgument(std::string(name) + ": give queries, keys and values [" +
                          std::to_string(context_count(lengths, comm.rank(), comm.size())) +
                          " rows of this rank, heads, width], of one type, on one device");
  }
  const at::ScalarType type = queries.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16)
    throw InvalidArgument(std::string(name) + ": give float32, float64 or bfloat16, not " +
                          dtype_name(type));
  check_context_heads(way, queries.size(1), keys.size(1), comm.size());
  return c10::make_intrusive<AttentionCall>(comm, lengths, site);
}

}  // namespace

const char* to_string(ContextWay way) {
  return way == ContextWay::kRing ? "ring" : "heads";
}

void check_context_heads(ContextWay way, int64_t heads, int64_t key_value_heads, int64_t ranks) {
  if (key_value_heads < 1 || heads % key_value_heads != 0)
    throw InvalidArgument("context attention: " + std::to_string(heads) +
                          " heads of queries do not share " + std::to_string(key_value_heads) +
                          " of keys evenly");
  if (way == ContextWay::kHeads && heads % ranks != 0)
    throw InvalidArgument("context attention: " + std::to_string(heads) +
                          " heads do not divide among " + std::to_string(ranks) +
                          " ranks; take the way kRing, which has no such limit");
}

at::Tensor ring_attention(const Communicator& comm, const at::Tensor& queries,
                          const at::Tensor& keys, const at::Tensor& values,
                          const std::vector<int64_t>& lengths, Site site) {
  return RingNode::apply(queries, keys, values,
                         checked_call("ring_attention", ContextWay::kRing, comm, queries, keys,
                                      values, lengths, site));
}

at::Tensor heads_attention(const Communicator& comm, const at::Tensor& queries,
                           const at::Tensor& keys, const at::Tensor& values,
                           const std::vector<int64_t>& lengths, Site site) {
  return HeadsNode::apply(queries, keys, values,
                          checked_call("heads_attention", ContextWay::kHeads, comm, queries, keys,
                                       values, lengths, site));
}

}  // namespace lockstep::inline v0
