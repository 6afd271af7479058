// What a rank has of a model and of its optimizer's state as bytes.
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <string>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/shard/internal/divided_parameters_state.h"

namespace lockstep::inline v0 {
namespace {

// The layout: [bytes of each optimizer's share] [the shares] [what no optimizer has].
using Lengths = std::vector<int64_t>;

int64_t head_bytes(const Lengths& lengths) {
  return static_cast<int64_t>(lengths.size() * sizeof(int64_t));
}

bool is_bytes(const at::Tensor& share) {
  return share.defined() && share.is_cpu() && share.scalar_type() == at::kByte &&
         share.dim() == 1 && share.is_contiguous();
}

}  // namespace

// Private memory: no ZeroOptimizer has moved it.
std::vector<at::Tensor> DividedParameters::State::without_optimizer() const {
  if (has_optimizer) return untrained;
  std::vector<at::Tensor> all;
  for (const DividedParameter& part : own) all.push_back(part.tensor);
  return all;
}

int64_t DividedParameters::share_bytes() const {
  Lengths lengths;
  int64_t bytes = 0;
  for (const AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    lengths.push_back(one.optimizer->share_bytes());
    bytes += lengths.back();
  }
  for (const at::Tensor& tensor : state_->without_optimizer())
    bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes + head_bytes(lengths);
}

void DividedParameters::write_share(const at::Tensor& into) const {
  if (!is_bytes(into) || into.numel() != share_bytes())
    throw InvalidArgument(state_->owner +
                          ": write_share() takes uint8 [share_bytes()], contiguous");
  const at::NoGradGuard no_grad;
  Lengths lengths;
  for (const AveragedParameters& one : state_->classes)
    if (one.optimizer) lengths.push_back(one.optimizer->share_bytes());
  int64_t at = head_bytes(lengths);
  std::memcpy(into.mutable_data_ptr(), lengths.data(), static_cast<size_t>(at));
  size_t which = 0;
  for (const AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    one.optimizer->write_share(into.narrow(0, at, lengths[which]));
    at += lengths[which++];
  }
  for (const at::Tensor& tensor : state_->without_optimizer()) {
    const auto count = static_cast<int64_t>(tensor.nbytes());
    into.narrow(0, at, count).copy_(tensor.detach().contiguous().view(-1).view(at::kByte));
    at += count;
  }
}

void DividedParameters::restore_share(const at::Tensor& share) {
  const at::NoGradGuard no_grad;
  const auto refuse = [&](const std::string& why) {
    throw DataError(state_->owner + ": restore_share(): " + why +
                    "; it is of another model, mesh or optimizer");
  };
  if (!is_bytes(share)) refuse("a share is uint8, 1-D and contiguous");
  Lengths lengths;
  for (const AveragedParameters& one : state_->classes)
    if (one.optimizer) lengths.push_back(0);
  const std::vector<at::Tensor> others = state_->without_optimizer();
  int64_t at = head_bytes(lengths), bytes = at;
  if (share.numel() < at) refuse("it is too short");
  std::memcpy(lengths.data(), share.const_data_ptr(), static_cast<size_t>(at));
  for (const int64_t length : lengths) {
    if (length < 0 || length > share.numel()) refuse("it is damaged");
    bytes += length;
  }
  for (const at::Tensor& tensor : others) bytes += static_cast<int64_t>(tensor.nbytes());
  if (bytes != share.numel())
    refuse("it has " + std::to_string(share.numel()) + " bytes instead of " +
           std::to_string(bytes));
  size_t which = 0;
  for (const AveragedParameters& one : state_->classes) {
    if (!one.optimizer) continue;
    one.optimizer->restore_share(share.narrow(0, at, lengths[which]));
    at += lengths[which++];
  }
  for (const at::Tensor& tensor : others) {
    const auto count = static_cast<int64_t>(tensor.nbytes());
    tensor.detach().view(-1).view(at::kByte).copy_(share.narrow(0, at, count));
    at += count;
  }
}

}  // namespace lockstep::inline v0
