#include "lockstep/shard/context_scope.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/comm/functional.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/context/context_attention.h"
#include "lockstep/shard/internal/divided_rows.h"

namespace lockstep::inline v0 {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("ContextScope: " + what);
}

void check(const hooks::AttentionCall& call) {
  if (call.mask.defined())
    refuse("attention has a mask, of which no rank has all tokens; give is_causal instead");
  if (call.dropout > 0)
    refuse("attention drops weights, which no rank has all of; give dropout 0 there");
  for (const at::Tensor& x : {call.queries, call.keys, call.values})
    if (x.dim() != 4)
      refuse("attention is given a tensor of " + std::to_string(x.dim()) +
             " dims; give [batch, heads, tokens, width]");
  if (call.queries.size(2) != call.keys.size(2))
    refuse("attention is given " + std::to_string(call.queries.size(2)) + " queries and " +
           std::to_string(call.keys.size(2)) +
           " keys; they are to be those of the same tokens of a rank");
  if (call.queries.size(1) % call.keys.size(1) != 0 || call.keys.size(1) != call.values.size(1))
    refuse(std::to_string(call.queries.size(1)) + " heads of queries do not share " +
           std::to_string(call.keys.size(1)) + " heads of keys");
}

// [batch, heads, tokens, width] <-> [batch * tokens, heads, width]
at::Tensor as_rows(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0) * x.size(2), x.size(1), x.size(3)});
}

at::Tensor causal(const Communicator& comm, ContextWay way, const hooks::AttentionCall& call) {
  const at::Tensor& q = call.queries;
  const int64_t batch = q.size(0), tokens = q.size(2);
  const std::vector<int64_t> lengths(static_cast<size_t>(batch), tokens * comm.size());
  // Theirs is divided by the square root of the width.
  const double factor = call.scale ? *call.scale * std::sqrt(static_cast<double>(q.size(3))) : 1.0;
  const at::Tensor queries = as_rows(factor == 1.0 ? q : q * factor);
  const auto attend = way == ContextWay::kRing ? ring_attention : heads_attention;
  const at::Tensor mixed = attend(comm, queries, as_rows(call.keys), as_rows(call.values), lengths,
                                  Communicator::Site::current());
  return mixed.view({batch, tokens, q.size(1), -1}).transpose(1, 2);
}

// Some heads of all ranks' tokens, and back (DeepSpeed-Ulysses, arXiv:2309.14509). In which order the tokens stand makes no
// difference, since each looks at all.
at::Tensor to_heads(const Communicator& comm, const at::Tensor& x) {
  const int64_t ranks = comm.size(), heads = x.size(1) / ranks;
  const at::Tensor sent = x.unflatten(1, {ranks, heads}).movedim(1, 0).contiguous();
  return functional::all_to_all(comm, sent).movedim(0, 2).flatten(2, 3);
}
at::Tensor to_tokens(const Communicator& comm, const at::Tensor& x) {
  const int64_t ranks = comm.size(), tokens = x.size(2) / ranks;
  const at::Tensor sent = x.unflatten(2, {ranks, tokens}).movedim(2, 0).contiguous();
  return functional::all_to_all(comm, sent).movedim(0, 1).flatten(1, 2);
}

at::Tensor to_all(const Communicator& comm, const hooks::AttentionCall& call) {
  for (const at::Tensor& x : {call.queries, call.keys})
    if (x.size(1) % comm.size() != 0)
      refuse(std::to_string(x.size(1)) + " heads do not divide among " +
             std::to_string(comm.size()) +
             " ranks, which exchange them where attention is not causal; take a number of ranks "
             "that divides them");
  const at::Tensor mixed = at::scaled_dot_product_attention(
      to_heads(comm, call.queries), to_heads(comm, call.keys), to_heads(comm, call.values), {}, 0.0,
      /*is_causal=*/false, call.scale, call.has_groups);
  return to_tokens(comm, mixed);
}

}  // namespace

ContextScope::ContextScope(const Communicator& comm, ContextWay way)
    : attention_([comm, way](const hooks::AttentionCall& call) {
        if (comm.size() == 1)
          return at::scaled_dot_product_attention(
              call.queries, call.keys, call.values,
              call.mask.defined() ? std::optional<at::Tensor>(call.mask) : std::nullopt,
              call.dropout, call.is_causal, call.scale, call.has_groups);
        check(call);
        if (const at::DeviceType type = call.queries.device().type();
            at::autocast::is_autocast_enabled(type)) {
          // As autocast does for the operation.
          const at::ScalarType dtype = at::autocast::get_autocast_dtype(type);
          hooks::AttentionCall narrow = call;
          for (at::Tensor* x : {&narrow.queries, &narrow.keys, &narrow.values}) *x = x->to(dtype);
          return narrow.is_causal ? causal(comm, way, narrow) : to_all(comm, narrow);
        }
        return call.is_causal ? causal(comm, way, call) : to_all(comm, call);
      }) {}

at::Tensor own_tokens(const Communicator& comm, const at::Tensor& batch) {
  if (comm.size() == 1) return batch;
  if (!batch.defined() || batch.dim() < 2)
    throw InvalidArgument("own_tokens: give a batch [batch, tokens, ...]");
  return batch.index_select(1, internal::own_rows_of(comm, batch.size(1), batch.device()));
}

}  // namespace lockstep::inline v0
