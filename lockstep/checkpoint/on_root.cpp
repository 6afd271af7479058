#include "lockstep/checkpoint/on_root.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <exception>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep {
namespace {

// An empty text means that all went well.
std::string share_text(Communicator& comm, std::string text, int root, Communicator::Site site) {
  const auto options = at::TensorOptions().device(comm.device());
  at::Tensor length = at::zeros({1}, options.dtype(at::kLong));
  if (comm.rank() == root) length.fill_(static_cast<int64_t>(text.size()));
  comm.broadcast(length, root, site);
  if (length.item<int64_t>() == 0) return {};
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (comm.rank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  at::Tensor shared = bytes.to(comm.device());
  comm.broadcast(shared, root, site);
  shared = shared.cpu();
  return {static_cast<const char*>(shared.const_data_ptr()), static_cast<size_t>(shared.numel())};
}

}  // namespace

void on_root(Communicator& comm, const std::function<void()>& fn, int root,
             Communicator::Site site) {
  std::exception_ptr failure;
  std::string message;
  if (comm.rank() == root) {
    try {
      fn();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      message = *error.what() ? error.what() : "an exception without a message";
    } catch (...) {
      failure = std::current_exception();
      message = "an unknown exception";
    }
  }
  message = share_text(comm, std::move(message), root, site);
  if (failure) std::rethrow_exception(failure);
  if (!message.empty()) throw CheckpointError(message);
}

}  // namespace lockstep
