#include "lockstep/parallel/ddp/internal/roll_call.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace lockstep::internal {
namespace {

constexpr int64_t kNumbers = sizeof(Announcement) / sizeof(int64_t);

at::Tensor to_tensor(const Announcement& announcement) {
  const at::Tensor tensor = at::empty({1, kNumbers}, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), &announcement, sizeof announcement);
  return tensor;
}

}  // namespace

Roll read_roll(std::span<const Announcement> said) {
  Roll roll;
  for (size_t r = 0; r < said.size(); ++r) {
    if (said[r].step == Step::kNothing) continue;
    if (said[r].step == Step::kForward) roll.samples += said[r].detail[2];
    if (roll.contributing++ == 0) {
      roll.first = static_cast<int>(r);
      roll.step = said[r];
    }
  }
  return roll;
}

Roll RollCall::call(const Announcement& own, Communicator::Site site) {
  const at::Tensor all = comm_.all_gather(to_tensor(own), site);
  settle();  // over since then
  std::vector<Announcement> said(static_cast<size_t>(comm_.size()));
  std::memcpy(said.data(), all.const_data_ptr(), said.size() * sizeof(Announcement));
  return read_roll(said);
}

void RollCall::start(const Announcement& own) {
  Pending& pending = pending_.emplace_back();
  pending.own = to_tensor(own);
  pending.all = at::empty({comm_.size(), kNumbers}, at::kLong);
  pending.work = comm_.iall_gather(pending.all, pending.own);
}

void RollCall::settle() {
  for (Pending& pending : pending_) pending.work.wait();
  pending_.clear();
}

}  // namespace lockstep::internal
