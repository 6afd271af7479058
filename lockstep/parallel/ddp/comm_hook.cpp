#include "lockstep/parallel/ddp/comm_hook.h"

#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

class SixteenBits final : public CommHook {
 public:
  explicit SixteenBits(at::ScalarType dtype) : dtype_(dtype) {}

  void prepare(Communicator& comm, std::span<const GradBucket> buckets) override {
    for (const GradBucket& bucket : buckets) {
      const at::ScalarType own = bucket.flat.scalar_type();
      const bool shorter = own == at::kFloat || own == at::kDouble;
      rounded_.push_back(shorter ? comm.symmetric_empty(bucket.flat.sizes(), dtype_)
                                 : at::Tensor());
    }
  }

  Work start(Communicator& comm, const GradBucket& bucket, const CallNote& note) override {
    const at::Tensor& rounded = rounded_[bucket.index];
    if (!rounded.defined()) return CommHook::start(comm, bucket, note);
    rounded.copy_(bucket.flat);
    return comm.iall_reduce(rounded, ReduceOp::kAvg, note);
  }

  void finish(Communicator&, const GradBucket& bucket, const CallNote&) override {
    if (rounded_[bucket.index].defined()) bucket.flat.copy_(rounded_[bucket.index]);
  }

  bool flat_only() const override { return true; }

 private:
  at::ScalarType dtype_;
  // Has a tensor for each bucket; undefined if a bucket already has the 16-bit dtype.
  std::vector<at::Tensor> rounded_;
};

}  // namespace

void CommHook::prepare(Communicator&, std::span<const GradBucket>) {}
Work CommHook::start(Communicator& comm, const GradBucket& bucket, const CallNote& note) {
  return comm.iall_reduce(bucket.flat, ReduceOp::kAvg, note);
}
void CommHook::finish(Communicator&, const GradBucket&, const CallNote&) {}
bool CommHook::flat_only() const {
  return false;
}

std::unique_ptr<CommHook> make_16_bit_hook(at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    throw InvalidArgument(std::string("a 16-bit hook is for float16 or bfloat16, not ") +
                          c10::toString(dtype));
  }
  return std::make_unique<SixteenBits>(dtype);
}

}  // namespace lockstep::inline v0
