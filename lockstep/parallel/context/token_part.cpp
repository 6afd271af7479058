#include "lockstep/parallel/context/token_part.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/context/context_attention.h"

namespace lockstep::inline v0 {
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

class RanksTokens final : public hooks::TokenPart {
 public:
  RanksTokens(Communicator comm, ContextWay way) : comm_(std::move(comm)), way_(way) {}

  int64_t count() const override { return comm_.size(); }
  std::vector<int64_t> rows(const Lengths& lengths) const override {
    return context_rows(lengths, comm_.rank(), comm_.size());
  }
  std::vector<int64_t> counts(const Lengths& lengths) const override {
    std::vector<int64_t> counts;
    for (int64_t rank = 0; rank < comm_.size(); ++rank)
      counts.push_back(context_count(lengths, rank, comm_.size()));
    return counts;
  }
  at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                    const Lengths& lengths) const override {
    const auto attention = way_ == ContextWay::kRing ? ring_attention : heads_attention;
    return attention(comm_, queries, keys, values, lengths, Communicator::Site::current());
  }
  void check_heads(int64_t heads, int64_t key_value_heads) const override {
    check_context_heads(way_, heads, key_value_heads, comm_.size());
  }
  at::Tensor gather(const at::Tensor& rows, const Lengths& lengths) const override {
    Communicator comm = comm_;
    return gathered_in_order(comm, rows, lengths);
  }
  void sum(const at::Tensor& numbers) const override {
    Communicator(comm_)
        .iall_reduce(numbers, ReduceOp::kSum, call_note("context: sums of the loss"))
        .wait();
  }
  uint64_t agree(const Lengths& lengths, const at::Tensor& ids, uint64_t drawn) const override {
    Communicator comm = comm_;
    return agreed(comm, lengths, ids, drawn);
  }

 private:
  Communicator comm_;
  ContextWay way_;
};

}  // namespace

std::shared_ptr<const hooks::TokenPart> token_part(const Communicator& comm, ContextWay way) {
  return std::make_shared<RanksTokens>(comm, way);
}

}  // namespace lockstep::inline v0
