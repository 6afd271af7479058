#include "lockstep/parallel/ddp/internal/join_protocol.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace lockstep::inline v0::internal {
namespace {

constexpr int64_t kNumbers = sizeof(Announcement) / sizeof(int64_t);

at::Tensor to_tensor(const Announcement& announcement) {
  const at::Tensor tensor = at::empty({1, kNumbers}, at::kLong);
  std::memcpy(tensor.mutable_data_ptr(), &announcement, sizeof announcement);
  return tensor;
}

}  // namespace

JoinState read_join_state(std::span<const Announcement> said) {
  JoinState join_state;
  for (size_t r = 0; r < said.size(); ++r) {
    if (said[r].step == Step::kNothing) continue;
    if (said[r].step == Step::kForward) join_state.samples += said[r].detail[2];
    if (join_state.contributing++ == 0) {
      join_state.first = static_cast<int>(r);
      join_state.step = said[r];
    }
  }
  return join_state;
}

JoinState JoinProtocol::call(const Announcement& own, Communicator::Site site) {
  const at::Tensor all = comm_.all_gather(to_tensor(own), site);
  settle();  // it has ended since
  std::vector<Announcement> said(static_cast<size_t>(comm_.size()));
  std::memcpy(said.data(), all.const_data_ptr(), said.size() * sizeof(Announcement));
  return read_join_state(said);
}

void JoinProtocol::start(const Announcement& own) {
  Pending& pending = pending_.emplace_back();
  pending.own = to_tensor(own);
  pending.all = at::empty({comm_.size(), kNumbers}, at::kLong);
  pending.work = comm_.iall_gather(pending.all, pending.own);
}

void JoinProtocol::settle() {
  for (Pending& pending : pending_) pending.work.wait();
  pending_.clear();
}

}  // namespace lockstep::inline v0::internal
