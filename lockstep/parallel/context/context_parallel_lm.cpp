#include "lockstep/parallel/context/context_parallel_lm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/context/context_layout.h"

namespace lockstep {
namespace {

std::string_view bytes_of(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

// Text for a note: what ranks must have in common, as two numbers.
std::string pair_text(const char* format, uint64_t first, uint64_t second) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, static_cast<uint32_t>(first),
                static_cast<uint32_t>(second));
  return text.data();
}

// One rank's number, on all of them.
uint64_t agreed(Communicator& comm, const std::vector<int64_t>& lengths, const at::Tensor& ids,
                uint64_t drawn) {
  const uint64_t shape = fingerprint(bytes_of(lengths.data(), lengths.size() * sizeof(lengths[0])));
  uint64_t content = 0;
  if (ids.defined()) {
    const at::Tensor whole = ids.cpu().contiguous();
    content = fingerprint(bytes_of(whole.const_data_ptr(), whole.nbytes()));
  }
  const at::Tensor seed =
      at::full({1}, comm.rank() == 0 ? static_cast<int64_t>(drawn) : 0, at::kLong);
  const std::string note = pair_text("context: lengths %08x, ids %08x", shape, content);
  comm.iall_reduce(seed, ReduceOp::kSum, call_note(note)).wait();
  return static_cast<uint64_t>(seed.item<int64_t>());
}

at::Tensor gathered_in_order(Communicator& comm, const at::Tensor& rows,
                             const std::vector<int64_t>& lengths) {
  std::vector<int64_t> counts, places;
  for (int64_t rank = 0; rank < comm.size(); ++rank) {
    const auto of_rank = context_rows(lengths, rank, comm.size());
    counts.push_back(static_cast<int64_t>(of_rank.size()));
    places.insert(places.end(), of_rank.begin(), of_rank.end());
  }
  const at::Tensor mine = rows.contiguous();
  const at::Tensor by_rank =
      at::empty({static_cast<int64_t>(places.size()), mine.size(1)}, mine.options());
  comm.iall_gatherv(by_rank, mine, counts).wait();
  const at::Tensor all = at::empty_like(by_rank);
  all.index_copy_(0, device::copy_to(at::tensor(places, at::kLong), all.device()), by_rank);
  return all;
}

// Ranks that are about to make different models get Mismatch.
void meet(const Communicator& comm, const LmConfig& config, const ContextOptions& options) {
  agree(comm, "context lm by " + std::string(to_string(options.way)),
        {{"config", fingerprint(to_json(config))}});
}

}  // namespace

LmContext lm_context(const Communicator& comm, const ContextOptions& options) {
  LmContext context{.parts = comm.size()};
  if (context.parts == 1) return context;
  const ContextWay way = options.way;
  context.rows = [rank = comm.rank(), size = comm.size()](const std::vector<int64_t>& lengths) {
    return context_rows(lengths, rank, size);
  };
  context.counts = [size = comm.size()](const std::vector<int64_t>& lengths) {
    std::vector<int64_t> counts;
    for (int64_t rank = 0; rank < size; ++rank)
      counts.push_back(context_count(lengths, rank, size));
    return counts;
  };
  context.attend = [comm, way](const at::Tensor& queries, const at::Tensor& keys,
                               const at::Tensor& values, const std::vector<int64_t>& lengths) {
    return way == ContextWay::kRing ? ring_attention(comm, queries, keys, values, lengths)
                                    : heads_attention(comm, queries, keys, values, lengths);
  };
  context.gather = [comm = Communicator(comm)](const at::Tensor& rows,
                                               const std::vector<int64_t>& lengths) mutable {
    return gathered_in_order(comm, rows, lengths);
  };
  context.sum = [comm = Communicator(comm)](const at::Tensor& numbers) mutable {
    comm.iall_reduce(numbers, ReduceOp::kSum, call_note("context: sums of the loss")).wait();
  };
  context.agree = [comm = Communicator(comm)](const std::vector<int64_t>& lengths,
                                              const at::Tensor& ids, uint64_t drawn) mutable {
    return agreed(comm, lengths, ids, drawn);
  };
  context.check_heads = [way, size = comm.size()](int64_t heads, int64_t key_value_heads) {
    check_context_heads(way, heads, key_value_heads, size);
  };
  return context;
}

TransformerLm context_parallel_lm(const LmConfig& config, const Communicator& comm,
                                  const ContextOptions& options) {
  TransformerLm lm(config, LmOptions{.context = lm_context(comm, options)});
  meet(comm, config, options);
  const at::NoGradGuard no_grad;
  Communicator sender = comm;
  for (const at::Tensor& parameter : lm->parameters()) sender.broadcast(parameter, 0);
  return lm;
}

TransformerLm context_parallel_lm(const TransformerLm& whole, const Communicator& comm,
                                  const ContextOptions& options) {
  const LmConfig& config = whole->config();
  TransformerLm lm(
      config, LmOptions{.initial = InitialParameters::kNone, .context = lm_context(comm, options)});
  meet(comm, config, options);
  const auto sources = whole->named_parameters();
  lm->to(sources.begin()->value().scalar_type());
  const at::NoGradGuard no_grad;
  for (auto& item : lm->named_parameters()) {
    const at::Tensor& source = sources[item.key()];
    item.value().copy_(source);
    item.value().set_requires_grad(source.requires_grad());
  }
  lm->train(whole->is_training());
  return lm;
}

}  // namespace lockstep
