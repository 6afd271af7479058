#include "lockstep/parallel/tensor/tensor_part.h"

#include <ATen/ops/full.h>

#include <map>
#include <utility>

#include "lockstep/model/vocabulary_loss.h"
#include "lockstep/parallel/tensor/tensor_regions.h"

namespace lockstep::inline v0 {
namespace {

class TensorPart final : public hooks::ModelPart {
 public:
  TensorPart(Communicator comm, bool divides_rows, const std::vector<int64_t>& fewer_heads)
      : comm_(std::move(comm)), divides_rows_(divides_rows) {
    for (const int64_t heads : fewer_heads) {
      const int64_t head = comm_.rank() * heads / comm_.size();
      // Each rank has one.
      sharers_.emplace(heads, heads == 1 ? comm_ : comm_.split(static_cast<int>(head)).value());
    }
  }

  int64_t index() const override { return comm_.rank(); }
  int64_t count() const override { return comm_.size(); }
  bool divides_rows() const override { return divides_rows_; }
  at::Tensor enter(const at::Tensor& rows) const override {
    return divides_rows_ ? gather_rows(comm_, rows) : copy_to_parts(comm_, rows);
  }
  at::Tensor leave(const at::Tensor& rows) const override {
    return divides_rows_ ? scatter_rows(comm_, rows) : reduce_from_parts(comm_, rows);
  }
  at::Tensor share(const at::Tensor& parameter) const override {
    return copy_to_parts(comm_, parameter);
  }
  at::Tensor share_head(const at::Tensor& parameter, int64_t heads) const override {
    return copy_to_parts(sharers_.at(heads), parameter);
  }
  at::Tensor gather(const at::Tensor& rows, int64_t columns) const override {
    std::vector<int64_t> counts;
    for (int64_t part = 0; part < count(); ++part)
      counts.push_back(begin(columns, part + 1) - begin(columns, part));
    return gather_columns(comm_, rows, counts);
  }
  void combine(const at::Tensor& statistics) const override {
    const auto reduce = [this](ReduceOp op, const char* note) {
      return [this, op, note](const at::Tensor& x) {
        Communicator(comm_).iall_reduce(x, op, call_note(note)).wait();
      };
    };
    combine_statistics(statistics, reduce(ReduceOp::kMax, "tensor: largest logits"),
                       reduce(ReduceOp::kSum, "tensor: sums of exponentials"));
  }
  uint64_t agree(uint64_t drawn) const override {
    const at::Tensor seed = at::full({1}, static_cast<int64_t>(drawn), at::kLong);
    Communicator(comm_).broadcast(seed, 0);
    return static_cast<uint64_t>(seed.item<int64_t>());
  }

 private:
  Communicator comm_;
  bool divides_rows_;
  std::map<int64_t, Communicator> sharers_;  // by the number of heads
};

}  // namespace

std::shared_ptr<const hooks::ModelPart> tensor_part(const Communicator& comm, bool divides_rows,
                                                    const std::vector<int64_t>& fewer_heads) {
  return std::make_shared<TensorPart>(comm, divides_rows, fewer_heads);
}

}  // namespace lockstep::inline v0
